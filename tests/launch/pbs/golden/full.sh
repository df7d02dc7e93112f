#!/bin/bash
# digits_cnn_two_workers: 2 workers, 1 evaluator.
# Written by `estimator-pipeline submit pbs` (estimator-pipeline 0.1.0). The job is in
#   /shared/runs/model/pbs/20260101-000000-00000000/job.yaml
#
# Ranks: 0 worker:0, 1 worker:1, 2 evaluator:0.
# Exit codes: 0 done; 2 bad input, 3 training diverged (a restart would fail again); 1 and others a failure after
# 5 restarts in a row; 143 cancelled; 75 stopped with a checkpoint, and not requeued.
#
# Submitted by `qsub OPTIONS -- /bin/bash -l job.sh`: of a job without a program, PBS ends the shell that runs the script
# by its first signal, and then all processes.
ep_options=(
    -N night_run
    -j oe
    -o /shared/runs/model/pbs/20260101-000000-00000000/pbs.log
    -r y
    -q gpu
    -A vision
    -P digits
    -l walltime=36:00:00
    -M me@example.org
    -m ae
    -l select=3:ncpus=8:mpiprocs=1:mem=64gb:ngpus=2:gpu_model=a100:scratch=100gb
    -l place=scatter:excl
    -l software=1
    -W umask=022
)

set -u
folder=/shared/runs/model/pbs/20260101-000000-00000000
cd '/home/me/my project' || exit 2
# PBS copies the output of a job when it ends, and overwrites that of the run before.
exec >>"$folder/output.log" 2>&1
restarts=0
while [ -e "$folder/run-$restarts" ]; do restarts=$((restarts + 1)); done
# PBS sets them for each host; their values here are only passed to the tasks if a line of pbs.setup changes them.
for ep_name in CUDA_VISIBLE_DEVICES NCPUS OMP_NUM_THREADS; do declare "ep_$ep_name=${!ep_name-}"; done
# Lines of pbs.setup may set variables: those that are used after them have a prefix.
ep_logs=$folder/run-$restarts
mkdir -p "$ep_logs"
rm -f "$ep_logs/asked" "$ep_logs/setup.log" "$ep_logs/setup-ended"
ep_log() { echo "$(date '+%F %T') job $PBS_JOBID: $*"; }
# Also for `status`.
ep_note() { ep_log "$*"; echo "$*" >>"$ep_logs/setup.log" || :; }

# A timer sends USR1 before the time limit. TERM comes from qdel and qsig, also to the tasks on this host.
# Bash handles a signal after its foreground command has ended, and a line of pbs.setup may run for hours. So this
# shell waits for a second one, which runs the lines and the tasks in a process group that can be terminated.
asked=
again=
job=
stop() {
    [ "$asked" = TERM ] || asked=$1
    again=1
    : >"$ep_logs/asked"
    [ -n "$job" ] || return
    if [ -e "$ep_logs/setup-ended" ]; then
        kill -s USR1 "$job" 2>/dev/null
    else
        kill -s TERM -- "-$job" 2>/dev/null
    fi
}
trap 'stop USR1' USR1
trap 'stop TERM' TERM

ep_limit=$(qstat -f "$PBS_JOBID" 2>/dev/null | sed -n 's/^ *Resource_List\.walltime = //p')
ep_limit=${ep_limit:-36:00:00}
if [ -n "$ep_limit" ]; then
    IFS=: read -r ep_hours ep_minutes ep_seconds <<<"$ep_limit"
    ep_left=$(((10#$ep_hours * 60 + 10#$ep_minutes) * 60 + 10#$ep_seconds - 300))
    [ "$ep_left" -gt 0 ] || ep_left=1
    set -m
    # PBS ends `sleep` by its signals too.
    (sleep "$ep_left" && kill -s USR1 $$) &
    trap "kill -s TERM -- -$! 2>/dev/null" EXIT
    set +m
fi
ep_log "start $restarts on $(paste -sd, "$PBS_NODEFILE")"
set -m
(
set +mu
trap 'exit 75' USR1 TERM

# pbs.setup, in this shell. `eval` reads line after line, as bash reads a script: an alias counts from the next line.
ep_setup=(
'ep_first=$LINENO'
'module load cuda/12'
'source /venv/bin/activate'
'' 'ep_ended=1'
)
ep_reported=" "
ep_depth=${BASH_SOURCE[*]}.$BASH_SUBSHELL
# Bash calls it for failures outside of conditions: also for those in sourced files and, with `set -E`, in functions and
# subshells, of which only the line of pbs.setup counts.
ep_failed() {
    local line=$(($2 - ep_first)) text=$4
    # 143: this shell was asked to stop.
    [ "$3" = "$ep_depth" ] && [ "$line" -ne 0 ] && [ "$1" -ne 143 ] || return 0
    [ "${ep_reported/ $line /}" = "$ep_reported" ] || return 0
    ep_reported+="$line "
    # Before bash 4.4 it is that of the function that failed.
    if [ "$line" -gt 0 ]; then
        text=${ep_setup[line]-$4}
        # A command of several lines.
        case ${ep_setup[line - 1]-}$'\n'$text in *\\ | *\\$'\n'*) text=$4 ;; esac
    fi
    ep_note "warning: a line of pbs.setup failed with exit code $1: $text"
}
trap 'ep_failed "$?" "$LINENO" "${BASH_SOURCE[*]}.$BASH_SUBSHELL" "$BASH_COMMAND"' ERR
ep_ended=
printf -v ep_text '%s\n' "${ep_setup[@]}"
eval "$ep_text"
# Without it, there was a syntax error.
[ -n "$ep_ended" ] || exit 2
trap - ERR
set +e
set -u

again=
child=
forward() {
    again=1
    [ -z "$child" ] || kill -s USR1 "$child" 2>/dev/null
}
trap forward USR1 TERM
# With a path to qsub, which pbs.setup may have set.
echo "$PATH" >|"$ep_logs/setup-ended"

export TF_CPP_MIN_LOG_LEVEL=1
export GREETING='it'"'"'s me'
export SHARE=0.5

# After a signal, all tasks stop after the same step with a checkpoint. The starter sends USR1 to them.
export ESTIMATOR_PIPELINE_PREEMPTION_SIGNALS=SIGTERM,SIGUSR1
export ESTIMATOR_PIPELINE_PREEMPTION_SECS=290
# The starter stops all tasks when one exits with a nonzero code, so a preempted task creates this file and exits with 0.
export ESTIMATOR_PIPELINE_PREEMPTED_FILE=$ep_logs/preempted
# Not every node has this folder.
set --
if [ -d '/var/lib/node exporter' ] && [ -w '/var/lib/node exporter' ]; then
    set -- --metrics '/var/lib/node exporter'/pbs-$PBS_JOBID.prom
else
    ep_log "no metrics: pbs.metrics_dir is not a writable folder on $(hostname)"
fi
for ep_name in CUDA_VISIBLE_DEVICES NCPUS OMP_NUM_THREADS; do
    ep_before=ep_$ep_name
    [ "${!ep_name-}" != "${!ep_before}" ] || unset "$ep_name"
done
# The starter of the tasks sends USR1 to the script when a host has failed: no task can be started there again.
export ep_script=$$
/venv/bin/python -m estimator_pipeline supervise \
    --max-restarts 5 --step-timeout 900 --grace 300 --log-dir "$ep_logs" "$@" -- \
    /venv/bin/python -m estimator_pipeline.launch.pbs.tasks "$ep_logs" 280 \
    apptainer exec --nv image.sif estimator-pipeline train /shared/runs/model/pbs/20260101-000000-00000000/job.yaml &
child=$!
# After a signal before this line. A process loses a signal between fork and exec.
[ ! -e "$ep_logs/asked" ] || { sleep 1; kill -s USR1 "$child"; }

# A signal interrupts `wait` before the tasks have ended.
while :; do
    wait "$child"
    code=$?
    [ -n "$again" ] || break
    again=
done

# pbs.teardown, also after a failure; read after pbs.setup, which may have set how it is read.
(
set +u
eval 'rm -rf /scratch/$PBS_JOBID'
)
torn=$?
[ "$torn" -eq 0 ] || ep_log "pbs.teardown ended with exit code $torn, which is not the job's"
exit "$code"
) &
job=$!
set +m
[ -z "$asked" ] || stop "$asked"

while :; do
    # If it was killed, bash prints all of its commands.
    wait "$job" 2>/dev/null
    code=$?
    [ -n "$again" ] || break
    again=
done

early=
if [ -e "$ep_logs/setup-ended" ]; then
    read -r path <"$ep_logs/setup-ended" && PATH=$path
elif [ -n "$asked" ]; then
    ep_note "asked to stop during pbs.setup"
    early=1
    code=75
else
    ep_note "pbs.setup ended the script with exit code $code"
    [ "$code" -ne 143 ] || code=1
    exit "$code"
fi
if [ "$code" -eq 0 ] && [ -e "$ep_logs/preempted" ]; then
    code=75
fi

if [ "$asked" = TERM ]; then
    ep_log "ended as asked, exit code $code; the next submission resumes from the last checkpoint"
    exit 143
fi
# A job that fails while it stops is requeued too: it repeats the steps after the last checkpoint.
trained=
grep -q '"first_step"' "$ep_logs/events.jsonl" 2>/dev/null && trained=1
if [ "$asked" = USR1 ] && [ "$code" -ne 0 ] && [ "$code" -ne 2 ] && [ "$code" -ne 3 ] && [ "$code" -ne 75 ]; then
    if [ -n "$trained" ]; then
        ep_log "failed while it stopped (exit code $code); the steps after the last checkpoint are lost"
    else
        # A task that has not begun to train is killed by the signal, and has nothing to save.
        ep_log "asked to stop before training had begun"
        early=1
    fi
    code=75
fi
if [ -n "$early" ]; then
    echo "$restarts" >>"$folder/too-early"
    if [ "$(wc -l <"$folder/too-early")" -ge 3 ]; then
        ep_log "stopped before training 3 times in a row: pbs.walltime is too short for pbs.signal_seconds and the start"
        exit 75
    fi
else
    rm -f "$folder/too-early"
fi
if [ "$code" -eq 75 ]; then
    if [ "$restarts" -ge 20 ]; then
        ep_log "stopped; not requeued, since pbs.max_requeues is 20"
        exit 75
    fi
    # qrerun is for operators. The new job has a new id.
    if ep_next=$(qsub "${ep_options[@]}" -- /bin/bash -l "$folder/job.sh"); then
        echo "$ep_next" >>"$folder/resubmitted"
        ep_log "stopped; submitted again as job $ep_next ($((restarts + 1)) of at most 20)"
        exit 75
    fi
    ep_log "PBS did not accept the job again; submit it again to resume"
fi
ep_log "ended with exit code $code"
# 143 is reserved for a cancelled job.
[ "$code" -ne 143 ] || code=1
exit "$code"
