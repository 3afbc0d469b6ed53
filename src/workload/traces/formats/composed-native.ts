import { atLine, readLines, refuse } from "../lines.ts";
import { createPrefixIds } from "../prefix-ids.ts";
import type { ParsedRequest, TraceRequest } from "../trace.ts";
import { type ParsedSession, parseSessionLine, type SessionCoding } from "./claude-sessions.ts";
import { checkBlockTokens, parseMooncakeLine, requestOf } from "./row-formats.ts";

/** A composed trace and the sessions it was made from. */
export interface NativeSource {
  readonly path: string;
  /** Tokens of the composed trace's own blocks, and of the sessions'. */
  readonly composedBlockTokens: number;
  readonly blockTokens: number;
  readonly sessionsPath: string;
  readonly sessionsCoding: SessionCoding;
}

/** A call as what it shares with the call before it and what follows. */
interface Call {
  readonly inputTokens: number;
  readonly outputTokens: number;
  readonly keep: number;
  readonly tail: Uint32Array;
}

interface Session {
  readonly calls: readonly Call[];
  /** How many leading blocks of the first call stand for the prefix shared by all sessions. */
  readonly openingBlocks: number;
  /** The session's block → its number in the trace + 1; 0 until it is first used. */
  readonly numbers: Uint32Array;
  /** The blocks of the call replayed last, as numbers of the trace. */
  current: Uint32Array;
  /** The call that comes next. */
  turn: number;
}

/** Distinct blocks so far, and the shared prefix: the number + 1 of its block at each depth. */
interface Numbering {
  next: number;
  readonly opening: number[];
}

/**
 * The composed trace with the sessions' own smaller blocks. Arrivals and order are the composed
 * file's; a row names its call by `session_id` and `turn`. As in the composing, the first
 * floor((tool_tokens + system_tokens) / 2 / block) blocks of a session's first call stand for one
 * prefix that all sessions share, wherever these names occur; all other blocks are the session's.
 */
export async function* composedNativeRequests(
  source: NativeSource,
): AsyncGenerator<TraceRequest, void, void> {
  const sessions = new Map<string, Session>();
  const numbering: Numbering = { next: 0, opening: [] };
  for await (const { number, text } of readLines(source.sessionsPath)) {
    atLine(source.sessionsPath, number, () => {
      const parsed = parseSessionLine(text, source.sessionsCoding);
      checkBlockTokens(parsed.blockTokens, source.blockTokens);
      sessions.set(parsed.id, packed(parsed));
    });
  }
  for await (const { number, text } of readLines(source.path)) {
    yield atLine(source.path, number, () => {
      const row = parseMooncakeLine(text, source.composedBlockTokens);
      const session = row.session === undefined ? undefined : sessions.get(row.session);
      if (session === undefined)
        throw refuse(`no session ${row.session} in ${source.sessionsPath}`);
      const blocks = replayCall(session, row, numbering);
      return requestOf({ ...row, blockTokens: source.blockTokens }, row.atMs, blocks);
    });
  }
}

/** Keeps a session in the memory of its distinct blocks rather than of all its prompts. */
function packed(session: ParsedSession): Session {
  const ids = createPrefixIds();
  let previous: Uint32Array = new Uint32Array(0);
  const calls = session.calls.map((call): Call => {
    const blocks = ids.intern(call.names);
    const shorter = Math.min(previous.length, blocks.length);
    let keep = 0;
    while (keep < shorter && previous[keep] === blocks[keep]) keep++;
    previous = blocks;
    const { inputTokens, outputTokens } = call;
    return { inputTokens, outputTokens, keep, tail: blocks.slice(keep) };
  });
  const openingBlocks = Math.floor(session.openingTokens / 2 / session.blockTokens);
  return {
    calls,
    openingBlocks,
    numbers: new Uint32Array(ids.size),
    current: new Uint32Array(0),
    turn: 0,
  };
}

function replayCall(session: Session, row: ParsedRequest, numbering: Numbering): Uint32Array {
  const call = row.turn === session.turn ? session.calls[session.turn] : undefined;
  if (call === undefined)
    throw refuse(`turn ${row.turn} of ${row.session}, of which turn ${session.turn} is next`);
  if (call.inputTokens !== row.inputTokens || call.outputTokens !== row.outputTokens)
    throw refuse(`turn ${row.turn} of ${row.session} has other lengths in the sessions file`);
  if (session.turn === 0)
    shareOpening(session, call.tail.subarray(0, session.openingBlocks), numbering);
  const blocks = new Uint32Array(call.keep + call.tail.length);
  blocks.set(session.current.subarray(0, call.keep));
  for (let i = 0; i < call.tail.length; i++) {
    const block = call.tail[i]!;
    if (session.numbers[block] === 0) session.numbers[block] = ++numbering.next;
    blocks[call.keep + i] = session.numbers[block]! - 1;
  }
  session.current = blocks;
  session.turn++;
  return blocks;
}

function shareOpening(session: Session, blocks: Uint32Array, numbering: Numbering): void {
  for (let depth = 0; depth < blocks.length; depth++) {
    if (depth === numbering.opening.length) numbering.opening.push(++numbering.next);
    session.numbers[blocks[depth]!] = numbering.opening[depth]!;
  }
}
