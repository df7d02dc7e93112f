#!/bin/sh
# Installs missing daemons and commands of Slurm for `make test-slurm`. They are not started as services.
set -eu

PATH=$PATH:/usr/sbin:/sbin
missing=
for program in slurmctld slurmd sbatch srun scontrol; do
    command -v "$program" >/dev/null 2>&1 || missing="$missing $program"
done
[ -n "$missing" ] || exit 0

if ! command -v apt-get >/dev/null 2>&1; then
    printf 'error: Slurm is missing:%s\n  hint: install slurmctld, slurmd and its commands\n' "$missing" >&2
    exit 2
fi
sudo=
[ "$(id -u)" = 0 ] || sudo="sudo -n"
# The installation must not start the daemons as services: this machine has no configuration for them.
export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1
$sudo apt-get update -q >/dev/null
$sudo apt-get install -qy --no-install-recommends slurmctld slurmd slurm-client munge >/dev/null
