#!/bin/bash
# digits_cnn_two_workers: 2 workers, 1 evaluator.
# Written by `estimator-pipeline submit slurm` (estimator-pipeline 0.1.0). The job is in
#   /shared/runs/model/slurm/20260101-000000-00000000/job.yaml
#
# Ranks: 0 worker:0, 1 worker:1, 2 evaluator:0.
# Exit codes: 0 done; 2 bad input, 3 training diverged (the same again would end the same); 1 and others a failure
# that 5 restarts in a row did not mend; 143 cancelled; 75 stopped with a checkpoint, and not requeued.
#
#SBATCH --job-name="night run"
#SBATCH --output=/shared/runs/model/slurm/20260101-000000-00000000/output.log
#SBATCH --open-mode=append
#SBATCH --chdir="/home/me/my project"
#SBATCH --requeue
#SBATCH --signal=B:USR1@300
#SBATCH --comment="the \"night\" run # 3"
#SBATCH --dependency=afterok:1234
#SBATCH --mail-user=me@example.org
#SBATCH --mail-type=END,FAIL
#SBATCH --time=1-12:00:00
#SBATCH --account=vision
#SBATCH --qos=long
#SBATCH --ntasks=3
#SBATCH --partition=gpu
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --gpus-per-task=a100:2
#SBATCH --gpus-per-node=a100:4
#SBATCH --gres=tmpdir:100G
#SBATCH --mem=64G
#SBATCH --constraint=a100&ib
#SBATCH --nodelist=n[1-4]
#SBATCH --exclude=n7,n8
#SBATCH --exclusive
#SBATCH --licenses=data:1
#SBATCH --wckey="a b # c"
#SBATCH --reservation="my nodes"
#SBATCH --begin=now
#SBATCH --hold --nice=5

module load cuda/12
source /venv/bin/activate

export TF_CPP_MIN_LOG_LEVEL=1
export GREETING='it'"'"'s me'
export TF_DETERMINISTIC_OPS=true
export SHARE=0.5

set -u
restarts=${SLURM_RESTART_COUNT:-0}
folder=/shared/runs/model/slurm/20260101-000000-00000000
logs=$folder/run-$restarts
mkdir -p "$logs"
say() { echo "$(date '+%F %T') job $SLURM_JOB_ID: $*"; }

# USR1 comes from Slurm before the time limit, and before some preemptions; TERM from scancel and from a preemption.
# Both make all tasks stop after the same step with a checkpoint. srun passes USR1 on to them; at TERM it would end them.
export ESTIMATOR_PIPELINE_PREEMPTION_SIGNALS=SIGTERM,SIGUSR1
export ESTIMATOR_PIPELINE_PREEMPTION_SECS=290
# srun ends all tasks once one ends with another code than 0, so a task says by a file that it was asked to end.
export ESTIMATOR_PIPELINE_PREEMPTED_FILE=$logs/preempted
asked=
again=
child=
forward() {
    [ "$asked" = TERM ] || asked=$1
    again=1
    [ -z "$child" ] || kill -s USR1 "$child" 2>/dev/null
}
trap 'forward USR1' USR1
trap 'forward TERM' TERM

say "start $restarts on $SLURM_JOB_NODELIST"
# Not every node need have it.
set --
if [ -d '/var/lib/node exporter' ] && [ -w '/var/lib/node exporter' ]; then
    set -- --metrics '/var/lib/node exporter'/slurm-$SLURM_JOB_ID.prom
else
    say "no metrics: slurm.metrics_dir is no folder on $(hostname) that can be written"
fi
/venv/bin/python -m estimator_pipeline supervise \
    --max-restarts 5 --step-timeout 900 --grace 300 --log-dir "$logs" "$@" -- \
    srun --ntasks=3 --cpus-per-task=8 --kill-on-bad-exit=1 --mpi=none --open-mode=append --output="$logs/task-%t.log" \
    apptainer exec --nv image.sif estimator-pipeline train /shared/runs/model/slurm/20260101-000000-00000000/job.yaml &
child=$!

# A signal ends the wait before the tasks have ended.
while :; do
    wait "$child"
    code=$?
    [ -n "$again" ] || break
    again=
done

# slurm.teardown, whatever came of the tasks.
(
set +u
rm -rf /scratch/$SLURM_JOB_ID
)
torn=$?
[ "$torn" -eq 0 ] || say "slurm.teardown ended with exit code $torn, which is not the job's"

if [ "$code" -eq 0 ] && [ -e "$ESTIMATOR_PIPELINE_PREEMPTED_FILE" ]; then
    code=75
fi

if [ "$asked" = TERM ]; then
    say "ended as asked, exit code $code; the next submission goes on from the last checkpoint"
    exit 143
fi
# What fails while it is asked to stop goes back into the queue too: what it has lost it trains again.
trained=
grep -q '"first_step"' "$logs/events.jsonl" 2>/dev/null && trained=1
early=
if [ "$asked" = USR1 ] && [ "$code" -ne 0 ] && [ "$code" -ne 2 ] && [ "$code" -ne 3 ] && [ "$code" -ne 75 ]; then
    if [ -n "$trained" ]; then
        say "failed while it stopped (exit code $code); the steps after the last checkpoint are lost"
    else
        # A task that has not begun to train ends by the signal, and has nothing to save.
        say "asked to stop before training had begun"
        early=1
    fi
    code=75
fi
if [ -n "$early" ]; then
    echo "$restarts" >>"$folder/too-early"
    if [ "$(wc -l <"$folder/too-early")" -ge 3 ]; then
        say "so it was 3 times in a row: slurm.time is too short for slurm.signal_seconds and the start"
        exit 75
    fi
else
    rm -f "$folder/too-early"
fi
if [ "$code" -eq 75 ]; then
    if [ "$restarts" -ge 20 ]; then
        say "stopped with a checkpoint; not requeued, since slurm.max_requeues is 20"
        exit 75
    fi
    say "stopped; back into the queue ($((restarts + 1)) of at most 20)"
    # Slurm ends what is left of this script with SIGTERM.
    trap '' TERM
    if scontrol requeue "$SLURM_JOB_ID"; then
        exit 75
    fi
    say "Slurm did not requeue the job; submit it again to go on"
fi
say "ended with exit code $code"
# 143 is the answer to a cancel alone.
[ "$code" -ne 143 ] || code=1
exit "$code"
