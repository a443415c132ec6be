"""HTTP: a served ensemble by the Open Inference Protocol, version 2; its client."""
