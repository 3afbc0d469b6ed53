import { expect, test } from "bun:test";
import { join } from "node:path";
import { openTrace } from "../../../src/workload/traces/index.ts";
import { describeTraces } from "./shared-traces.ts";
import { tally } from "./tally.ts";

const COMPOSED = "claude_code_composed_512.jsonl.zst";
const SESSIONS = "claude_code_sessions.jsonl.zst";
const RUNS = "claude_code_sessions.runs.jsonl.gz";

/** file, requests, uses of blocks, distinct blocks, unlimited hit ratio, prompt tokens. */
const PUBLISHED: readonly (readonly [string, number, number, number, string, number])[] = [
  ["mooncake_conversation_0-40min.jsonl.gz", 7851, 194284, 126103, "0.3509", 97571920],
  ["mooncake_toolmix_0-40min.jsonl.gz", 17456, 308045, 144599, "0.5306", 152703426],
  ["mooncake_arxiv_first1000.jsonl.gz", 1000, 19686, 12207, "0.3799", 9792030],
  [COMPOSED, 27049, 6148746, 247086, "0.9598", 3142972570],
  ["ragpulse", 4929, 905095, 620039, "0.3149", 14442913],
  ["ragpulse/0_trace.jsonl.gz", 4929, 905095, 620039, "0.3149", 14442913],
  ["agent_logs_block16.jsonl.gz", 1619, 251298, 25809, "0.8973", 4009234],
  ["azure_llm_2023_code.csv.gz", 8819, 40014, 40014, "0.0000", 18059974],
  ["azure_llm_2023_conv.csv.gz", 19366, 52913, 52913, "0.0000", 22361870],
  ["dynamo_pi_request_trace.jsonl.gz", 17, 4163, 1183, "0.7158", 66520],
  [RUNS, 30808, 56094989, 2071808, "0.9631", 3591056993],
  [SESSIONS, 30808, 56094989, 2071808, "0.9631", 3591056993],
];

describeTraces("the published counts", (folder) => {
  test.each(PUBLISHED)(
    "%s",
    async (file, requests, uses, distinct, ratio, tokens) => {
      const counted = await tally(await openTrace(join(folder, file)));
      expect(counted).toMatchObject({ requests, uses, distinct, inputTokens: tokens });
      expect((counted.hits / counted.uses).toFixed(4)).toBe(ratio);
    },
    60_000,
  );

  test("the lengths of RAGPulse's pieces are no trace", async () => {
    const opened = openTrace(join(folder, "ragpulse/3_history.jsonl.gz"));
    await expect(opened).rejects.toThrow(/give 0_trace\.jsonl\.gz of the same folder/);
  });
});
