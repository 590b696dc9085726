"""The client's version, said in one place."""

VERSION = "0.1.0"
