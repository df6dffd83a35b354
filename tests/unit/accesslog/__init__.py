"""Tests of access-log windows, ORCA and load reports."""
