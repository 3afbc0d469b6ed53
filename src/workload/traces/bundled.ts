import path from "./data/mooncake_arxiv_first1000.jsonl.gz" with { type: "file" };
import { openTrace } from "./open.ts";
import type { Trace } from "./trace.ts";

/**
 * The trace that is part of the executable: the first 1,000 requests (177 s) of the Mooncake arXiv
 * release, 19,686 block uses of 512 tokens. Source and licence: `data/README.md`.
 */
export function bundledTrace(): Promise<Trace> {
  return openTrace(path, { name: "mooncake_arxiv_first1000" });
}
