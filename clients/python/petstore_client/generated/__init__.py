"""Generated from openapi.json by `make generate NAME=clients`: do not edit."""

VERSION = "1.0.0"
