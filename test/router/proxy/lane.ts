import { Skip } from "../../engines/kit/cache.ts";
import { defineLane, LaneSkip, oneOf, text, whole } from "../../support/lane.ts";
import { standInRows, vllmRows } from "./rows.ts";
import { runTrial } from "./trial.ts";

const ADDED_P50_MAX_MS = 3;
/** Latency is judged with at least this number of samples. */
const JUDGED_FROM = 100;

export const lane = defineLane({
  help: `
Starts two mock engines, with the answers of vLLM and of SGLang, and \`hearth router\` with its
proxy in front of them, each in a process of its own. OpenAI's JavaScript client streams through
it: the stream must equal what the engines wrote, cancels must reach them, errors must arrive as its
exceptions. The time to the first byte is measured with and without the proxy, interleaved. Then the
JavaScript clients of OpenAI and Anthropic request every path that the proxy serves, and one of two
engines is stopped by SIGSTOP, with its server and without: the other must finish the requests.

  ./dev test:proxy                         200 streams at once, 300 requests for the latency
  ./dev test:proxy --engine vllm           paths and SIGSTOP with two real vLLM servers, no figures
  ./dev test:proxy --streams 1000          more
  ./dev test:proxy --samples 1000
  ./dev test:proxy --binary dist/hearth    with the executable instead of the sources
  ./dev test:proxy --json                  the figures as one line of JSON on standard output

From 100 samples on the latency is judged: the proxy adds at most 3 ms to the median.
A host that cannot run vLLM prints "skipped" and exits 0; with REQUIRE_ENGINES=1 it exits 1.
Exit codes: 0 all is well, or skipped; 1 a violation; 2 wrong usage.
`,
  options: {
    streams: whole(1, 200),
    samples: whole(1, 300),
    binary: text(),
    engine: oneOf(["stand-in", "vllm"], "stand-in"),
  },
  async run({ streams, samples, binary, engine }, host) {
    const violations: string[] = [];
    let measured: object = {};
    const onProgress = (line: string) => host.say(line);
    if (engine === "stand-in") {
      const trial = await runTrial({ streams, samples, binary, onProgress });
      measured = trial.figures;
      violations.push(...trial.violations);
      const addedMs = trial.figures.added_ttfb_p50_ms;
      if (samples >= JUDGED_FROM && !(addedMs <= ADDED_P50_MAX_MS)) {
        violations.push(`the proxy adds ${addedMs} ms to the first byte`);
      }
    }
    const rowsOf = engine === "vllm" ? vllmRows : standInRows;
    const rows = await rowsOf({ binary, onProgress }).catch((thrown: unknown) => {
      throw thrown instanceof Skip ? new LaneSkip(thrown.message, "ENGINES") : thrown;
    });
    for (const { row, ok, found } of rows) {
      host.print(`${ok ? "ok    " : "FAILED"} ${row}: ${found}`);
      if (!ok) violations.push(`${row}: ${found}`);
    }
    return {
      violations,
      json: { engine, ...measured, rows, violations },
      text: JSON.stringify({ engine, ...measured, rows: rows.length }),
    };
  },
});
