"""Lines as each trainer writes them, `n` the step, `c` its samples, `m` its micro-steps."""

import json

MEGATRON = (
    " [2026-03-05 08:40:0{n}.250000] iteration       {n}/     100 | "
    "consumed samples:         {c} | elapsed time per iteration (ms): 1234.{n} | "
    "throughput per GPU (TFLOP/s/GPU): 410.2 | "
    "learning rate: 1.000000E-04 | global batch size:   256 | lm loss: 3.20{n}000E+00 | "
    "loss scale: 1.0 | grad norm: 1.25 | number of skipped iterations:   0 |\n"
)
PRIMUS = (
    "[20260305 08:40:0{n}][rank-31/32][INFO ] [--------trainer.py:2488] :  iteration {n}/ 36000 | "
    "consumed samples: 3104000 | elapsed time per iteration (ms): 2701.{n}/2712.7 | "
    "hip mem usage/free/total/usage_ratio: 227.35GB/28.63GB/255.98GB/88.81% | "
    "compute per GPU (TFLOP/s/GPU): 210.5 (avg 217.3) | "
    "tokens/s/GPU inst/harmonic mean: 12130.4/12525.5 | lm loss: 2.352391E+00 | "
    "grad norm: 0.132 |\n"
)
TITAN = (
    "[rank3]:[titan] 2026-03-05 08:40:0{n},125 - root - INFO - step: {n:2}  loss:  8.166{n}  "
    "grad_norm:  3.6855  memory:  2.50GiB(3.12%)  tps: 7,28{n}  tflops: 407.35  mfu: 41.19%\n"
)
VERL = (
    "(TaskRunner pid=123) step:{n} - global_seqlen/mean:61520.2 - actor/pg_loss:0.01{n} - "
    "actor/grad_norm:np.float64(0.5) - perf/mfu/actor:0.34 - perf/throughput:1234.5 - "
    "timing_s/gen:12.5 - timing_s/update_actor:20.25 - timing_s/step:4{n}.5\n"
)
MAXTEXT = (
    "I0305 08:40:0{n}.500000 140 metric_logger.py:99] completed step: {n}, seconds: 1.{n}5, "
    "TFLOP/s/device: 123.456, Tokens/s/device: 4567.890, total_weights: 65536, loss: 2.{n}45\n"
)
MMENGINE = (
    "2026/03/05 08:40:0{n} - mmengine - INFO - Iter(train) [  {n}/1000]  base_lr: 1.0e-04 "
    "lr: 2.0e-04  eta: 0:20:33  time: 1.2{n}45  data_time: 0.0123  memory: 12345  loss: 2.3{n}\n"
)
EPOCHS = (
    "03/05 08:40:0{n} - mmengine - INFO - Epoch(train)  [2][{n}/500]  lr: 2.0e-04  eta: 1 day, "
    "0:20:33  time: 1.2{n}45  data_time: 0.0123  memory: 12345  loss: 2.3{n}\n"
)
XTUNER = (
    "[XTuner][RANK 5][2026-03-05 08:40:0{n}][INFO] Epoch 1 Step {n}/200 data_time: 0.0125 "
    "lr: 1.000000e-05 time: 3.2{n}00 text_tokens: 32768 reduced_consumed_tokens: 99 "
    "total_loss: 1.5{n}000000 grad_norm: 0.75000000 max_memory: 60.50 GB "
    "reserved_memory: 64.00 GB tgs: 10150.4 exp_tgs: 10000.0 eta: 0:10:00 \n"
)
DEEPSPEED = (
    "[2026-03-05 08:40:0{n},500] [INFO] [logging.py:96:log_dist] [Rank 0] step={n}, skipped=0, "
    "lr=[1e-05], mom=[(0.9, 0.999)]\n"
    "[2026-03-05 08:40:0{n},510] [INFO] [timer.py:260:stop] epoch=0/micro_step={m}/"
    "global_step={n}, RunningAvgSamplesPerSec=5.2, CurrSamplesPerSec=5.{n}, MemAllocated=1.2GB, "
    "MaxMemAllocated=3.5GB\n"
    "[2026-03-05 08:40:0{n},520] [INFO] [logging.py:96:log_dist] [Rank 0] time (ms) | "
    "fwd: 12.5 | bwd: 20.25 | bwd_inner: 19.5 | step: 3.25\n"
)
STATE = json.dumps(
    {
        "best_metric": None,
        "global_step": 20,
        "log_history": [
            {"epoch": 0.1, "grad_norm": 1.5, "learning_rate": 5e-5, "loss": 2.5, "step": 10},
            {"epoch": 0.1, "eval_loss": 2.4, "step": 10},
            {"epoch": 0.2, "grad_norm": 1.25, "learning_rate": 4e-5, "loss": 2.25, "step": 20},
            {"epoch": 0.2, "step": 20, "train_runtime": 50.0, "train_samples_per_second": 12.8},
        ],
    },
    indent=2,
)
"""Hugging Face's `trainer_state.json`."""
PRINTED = "".join(
    f"{{'loss': '{3 - n / 4}', 'grad_norm': '1.5', 'learning_rate': '5e-05', 'epoch': '0.{n}'}}\n"
    for n in range(1, 4)
)
"""What Hugging Face's Trainer prints."""
MLPERF = (
    '0: :::MLLOG {"namespace": "", "time_ms": 1772700000000, "event_type": "POINT_IN_TIME", '
    '"key": "global_batch_size", "value": 64, "metadata": {"file": "train.py", "lineno": 5}}\n'
) + "".join(
    f'0: :::MLLOG {{"namespace": "", "time_ms": {1_772_700_000_000 + 1000 * n}, '
    f'"event_type": "POINT_IN_TIME", "key": "tracked_stats", '
    f'"value": {{"train_loss": {5.0 - n}, "throughput": {100.0 + n}}}, '
    f'"metadata": {{"file": "train.py", "lineno": 5, "samples_count": {640 * n}}}}}\n'
    for n in range(1, 4)
)
TITAN_EVENTS = "".join(
    json.dumps(
        {"tid": 7, "rank": 2, "global_rank": 2, "source": "training", "step": step,
         "time_us": 1_772_700_000_000_000 + 100_000 * step + at, "log_type_name": name,
         "event_name": event, "value": value}
    ) + "\n"
    for step in range(1, 4)
    for at, name, event, value in (
        (0, "fetching_batch_start", None, None), (10_000, "fetching_batch_end", None, None),
        (15_000, "fwd_bwd_start", None, None), (95_000, "fwd_bwd_end", None, None),
        (96_000, "metric_value", "loss", 5.0 - step),
    )
)  # fmt: skip


def lines(template: str, count: int = 3) -> str:
    return "".join(template.format(n=n, c=256 * n, m=4 * n) for n in range(1, count + 1))
