#!/usr/bin/env bash
# One encode, one prefill and one decode worker. Settings: see disagg.sh.
NUM_E=1 NUM_P=1 NUM_D=1 exec bash "$(dirname "${BASH_SOURCE[0]}")/disagg.sh"
