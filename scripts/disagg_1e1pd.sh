#!/usr/bin/env bash
# One encode worker, and one that prefills and decodes. Settings: see disagg.sh.
NUM_E=1 NUM_P=0 NUM_D=1 exec bash "$(dirname "${BASH_SOURCE[0]}")/disagg.sh"
