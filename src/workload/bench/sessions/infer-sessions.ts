/** A block of so many requests is common ground: it names no conversation. */
const COMMON_USES = 40;

export interface PromptBlocks {
  readonly blocks: Uint32Array;
  readonly ends: Uint32Array;
  readonly distinct: number;
}

/**
 * Conversations of a trace that names none: a request is the next turn of the latest request that
 * has its deepest known block, unless that block is used by 40 or more requests; else it begins a
 * conversation. The rule, and the figures of it, are those published with the traces.
 */
export function inferSessions({ blocks, ends, distinct }: PromptBlocks): Uint32Array {
  const uses = new Uint32Array(distinct);
  for (const block of blocks) uses[block]!++;
  const sessionOf = new Uint32Array(ends.length);
  /** The conversation of the latest request that has the block, from 1; 0: no request has. */
  const latest = new Uint32Array(distinct);
  let sessions = 0;
  let from = 0;
  for (const [request, to] of ends.entries()) {
    let known = from;
    while (known < to && latest[blocks[known]!] !== 0) known++;
    const deepest = known === from ? undefined : blocks[known - 1]!;
    const goesOn = deepest !== undefined && uses[deepest]! < COMMON_USES;
    const session = goesOn ? latest[deepest]! : ++sessions;
    for (let at = from; at < to; at++) latest[blocks[at]!] = session;
    sessionOf[request] = session - 1;
    from = to;
  }
  return sessionOf;
}
