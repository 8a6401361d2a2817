#!/bin/sh
# Check on a machine with a real NVIDIA GPU that what the project says of it is true. Changes nothing, resets nothing, needs
# python3 alone; without a GPU it says so and ends well.
set -eu
exec python3 "$(dirname "$0")/checks.py"
