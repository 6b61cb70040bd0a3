"""Generated from openapi.json by `make generate NAME=clients`: do not edit."""
