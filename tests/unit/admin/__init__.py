"""Tests of the admin service."""
