/** `./dev test:proxy`: runs OpenAI's and Anthropic's clients against engines through a router. */
import { scriptOptions } from "../../../scripts/lib/arguments.ts";
import { Skip } from "../../engines/kit/cache.ts";
import type { Row } from "./client-rows.ts";
import { standInRows, vllmRows } from "./rows.ts";
import { runTrial } from "./trial.ts";

const HELP = `
Starts two mock engines, with the answers of vLLM and of SGLang, and \`hearth router\` with its
proxy in front of them, each in a process of its own. OpenAI's JavaScript client streams through
it: what comes must be what engines wrote, cancels must reach them, errors must come as its
exceptions. The time to the first byte is measured with and without the proxy, in turns. Then the
JavaScript clients of OpenAI and Anthropic ask for every path that the proxy has, and one of two
engines is stopped by SIGSTOP, with its server and without: requests must be finished by the other.

  ./dev test:proxy                         200 streams at once, 300 requests for the latency
  ./dev test:proxy --engine vllm           paths and SIGSTOP with two real vLLM servers, no figures
  ./dev test:proxy --streams 1000          more
  ./dev test:proxy --samples 1000
  ./dev test:proxy --binary dist/hearth    with the executable instead of the sources
  ./dev test:proxy --json                  the figures as one line of JSON on standard output

The latency is judged with 100 samples and more: the proxy adds at most 3 ms to the median.
A host that cannot run vLLM prints "skipped" and exits 0; with REQUIRE_ENGINES=1 it exits 1.
Exit codes: 0 all is well, or skipped; 1 a violation; 2 wrong usage.
`;

const ADDED_P50_MAX_MS = 3;
const JUDGED_FROM = 100;

const options = scriptOptions(HELP, {
  streams: { type: "string", default: "200" },
  samples: { type: "string", default: "300" },
  binary: { type: "string" },
  engine: { type: "string", default: "stand-in" },
  json: { type: "boolean", default: false },
});
const [streams, samples] = [Number(options.streams), Number(options.samples)];
if (![streams, samples].every((count) => Number.isSafeInteger(count) && count > 0)) {
  console.error("--streams and --samples are whole numbers above 0");
  process.exit(2);
}
if (options.engine !== "stand-in" && options.engine !== "vllm") {
  console.error(`--engine ${options.engine}: expected stand-in or vllm`);
  process.exit(2);
}
const binary = options.binary ?? null;
const onProgress = (text: string) => void process.stderr.write(`proxy: ${text}\n`);

async function rowsOf(): Promise<Row[]> {
  try {
    return await (options.engine === "vllm" ? vllmRows : standInRows)({ binary, onProgress });
  } catch (thrown) {
    if (!(thrown instanceof Skip)) throw thrown;
    console.error(`skipped: ${thrown.message}`);
    return process.exit(process.env.REQUIRE_ENGINES === "1" ? 1 : 0);
  }
}

const all: string[] = [];
let measured: object = {};
if (options.engine === "stand-in") {
  const { figures, violations } = await runTrial({ streams, samples, binary, onProgress });
  measured = figures;
  all.push(...violations);
  if (samples >= JUDGED_FROM && !(figures.added_ttfb_p50_ms <= ADDED_P50_MAX_MS)) {
    all.push(`the proxy adds ${figures.added_ttfb_p50_ms} ms to the first byte`);
  }
}
const rows = await rowsOf();
for (const { row, ok, found } of rows) {
  if (!options.json) console.log(`${ok ? "ok    " : "FAILED"} ${row}: ${found}`);
  if (!ok) all.push(`${row}: ${found}`);
}
for (const violation of all) console.error(`violation: ${violation}`);
const report = { engine: options.engine, ...measured, rows, violations: all };
console.log(
  options.json ? JSON.stringify(report) : JSON.stringify({ ...report, rows: rows.length }),
);
process.exit(all.length === 0 ? 0 : 1);
