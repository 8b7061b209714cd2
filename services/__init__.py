"""The workers and what they are made of; `python -m services --role ROLE` starts one."""
