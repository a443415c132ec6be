"""HTTP: a served ensemble by the Open Inference Protocol, version 2, on FastAPI and uvicorn; its client; its load."""
