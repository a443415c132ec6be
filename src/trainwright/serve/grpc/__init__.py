"""gRPC: the same models by the Open Inference Protocol, version 2, on a port of its own."""
