import { run } from "../../../scripts/lib/run.ts";
import { Agent } from "../kit/agent.ts";
import { askAll } from "../kit/ask-all.ts";
import { Skip } from "../kit/cache.ts";
import { compare, quantile } from "../kit/compare.ts";
import { ensureEngine, type Installed } from "../kit/install.ts";
import type { LaneContext } from "../kit/lane.ts";
import { connectorFigures } from "../kit/metrics.ts";
import { ensureModel } from "../kit/model.ts";
import { Prompts } from "../kit/prompts.ts";
import { checkRestored, questionsOf } from "../kit/stages.ts";
import { Vllm } from "../kit/vllm.ts";

/** The shape of Qwen3-14B, the model of the pin worklog. */
const SHAPE = [
  ...["--layers", "40", "--hidden", "5120", "--intermediate", "17408"],
  ...["--heads", "40", "--kv-heads", "8", "--vocabulary", "32768"],
  ...["--dtype", "bfloat16", "--no-weights"],
];
const PROMPT_TOKENS = 15_002;
const LENGTH_MAX = 16_384;
const PROMPTS = 5;
const RAM_MIB = 24_576;
const TTFT_RATIO_MAX = 1 / 11;
const LINK_SHARE_MIN = 0.9;

/** Prints the bytes per second of a copy from page-locked memory to the GPU. */
const LINK = `
import time, torch
source = torch.empty(1 << 30, dtype=torch.uint8, pin_memory=True)
target = torch.empty_like(source, device="cuda")
best = 0.0
for _ in range(8):
    torch.cuda.synchronize()
    began = time.monotonic()
    target.copy_(source, non_blocking=True)
    torch.cuda.synchronize()
    best = max(best, source.numel() / (time.monotonic() - began))
print(best)
`;

async function linkRate({ python }: Installed): Promise<number> {
  const { ok, output } = await run([python, "-c", LINK]);
  if (!ok) throw new Error(`the link cannot be measured: ${output}`);
  return Number(output.trim().split("\n").at(-1));
}

/** A real model shape with random weights: restored from Hearth against computed, on a GPU. */
export async function gpu(context: LaneContext): Promise<void> {
  const { sheet, folder, seed, isQuick } = context;
  const found = await run(["nvidia-smi", "-L"]);
  if (!found.ok) throw new Skip("no GPU: nvidia-smi does not list one");
  sheet.figure("GPU", found.output.trim());
  const engine = await ensureEngine("vllm-cuda");
  const model = await ensureModel(engine, { seed: 1, extra: SHAPE });
  const link = await linkRate(engine);
  await using agent = await Agent.start({
    ...{ name: "a", folder, ramMib: RAM_MIB },
    config: { gpu: { enabled: "auto" } },
  });
  await using server = await Vllm.start({
    ...{ name: "gpu", engine, model, folder, isGpu: true, lengthMax: LENGTH_MAX },
    ...{ hearth: { socket: agent.socket }, args: ["--load-format", "dummy"] },
  });
  const prompts = new Prompts(seed + 1_000, model.vocabulary);
  const count = isQuick ? 2 : PROMPTS;
  const sent = Array.from({ length: count }, () => prompts.tokens(PROMPT_TOKENS));
  const computed = await askAll(server, questionsOf(sent, 8), 1, "computed");
  await agent.settled();
  await server.resetPrefixCache();
  const restored = await askAll(server, questionsOf(sent, 8), 1, "restored");
  checkRestored(sheet, "restored", sent, restored);
  sheet.figure("tokens", compare(computed, restored));
  const times = [restored, computed].map((answers) => answers.map((one) => one.firstTokenMs));
  sheet.figure("TTFT restored and computed, ms", times);
  const ratio = quantile(times[0]!, 0.5) / quantile(times[1]!, 0.5);
  sheet.atMost("TTFT at 15,000 tokens, restored/computed", ratio, TTFT_RATIO_MAX);
  const metrics = await server.metrics();
  const bytes = metrics.sum("vllm:hearth_loaded_bytes_total");
  const seconds = metrics.sum("vllm:hearth_copy_seconds_total", "load");
  sheet.figure("link, GB/s", link / 1e9);
  sheet.atLeast("load/link", bytes / seconds / link, LINK_SHARE_MIN);
  sheet.figure("connector", connectorFigures(metrics));
}
