/** `bun run test:proxy`: OpenAI's own client in front of mock engines, through `hearth router`. */
import { scriptOptions } from "../../scripts/lib/arguments.ts";
import { runTrial } from "./trial.ts";

const HELP = `
Starts two mock engines, with the answers of vLLM and of SGLang, and \`hearth router\` with its
proxy in front of them, each in a process of its own. OpenAI's JavaScript client streams through
it: what comes must be what engines wrote, cancels must reach them, errors must come as its
exceptions. The time to the first byte is measured with and without the proxy, in turns.

  bun run test:proxy                         200 streams at once, 300 requests for the latency
  bun run test:proxy -- --streams 1000       more
  bun run test:proxy -- --samples 1000
  bun run test:proxy -- --binary dist/hearth with the executable instead of the sources
  bun run test:proxy -- --json               the figures as one line of JSON on standard output

The latency is judged with 100 samples and more: the proxy adds at most 3 ms to the median.
Exit codes: 0 all is well; 1 a violation; 2 wrong usage.
`;

const ADDED_P50_MAX_MS = 3;
const JUDGED_FROM = 100;

const options = scriptOptions(HELP, {
  streams: { type: "string", default: "200" },
  samples: { type: "string", default: "300" },
  binary: { type: "string" },
  json: { type: "boolean", default: false },
});
const [streams, samples] = [Number(options.streams), Number(options.samples)];
if (![streams, samples].every((count) => Number.isSafeInteger(count) && count > 0)) {
  console.error("--streams and --samples are whole numbers above 0");
  process.exit(2);
}
const { figures, violations } = await runTrial({
  ...{ streams, samples, binary: options.binary ?? null },
  onProgress: (text) => process.stderr.write(`proxy: ${text}\n`),
});
const all = [...violations];
if (samples >= JUDGED_FROM && !(figures.added_ttfb_p50_ms <= ADDED_P50_MAX_MS)) {
  all.push(`the proxy adds ${figures.added_ttfb_p50_ms} ms to the first byte`);
}
for (const violation of all) console.error(`violation: ${violation}`);
const report = { ...figures, violations: all };
console.log(options.json ? JSON.stringify(report) : JSON.stringify(report, null, 2));
process.exit(all.length === 0 ? 0 : 1);
