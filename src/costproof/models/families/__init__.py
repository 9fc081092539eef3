"""Families of models: every module or package in this folder is a target, described by its first line."""
