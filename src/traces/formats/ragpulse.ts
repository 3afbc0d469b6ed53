import {
  atLine,
  listOf,
  objectOf,
  parseObject,
  refuse,
  show,
  textOf,
  timeOf,
  tokensOf,
} from "../fields.ts";
import { LIMITS, type ParsedRequest, type TraceRequest } from "../trace.ts";
import { PIECE_KINDS, pieceIdOf, pieceName, readPieces } from "./ragpulse-pieces.ts";
import { type PlacedRequest, readRequests, requestOf, type Source } from "./reader.ts";

/** The source has pieces, not blocks; prompts are cut into blocks of this many tokens. */
export const RAGPULSE_BLOCK_TOKENS = 16;

const PIECES_MAX = 2 ** 14;
const NUMBER = /^\d{1,12}(?:\.\d{1,9})?$/;

/**
 * One request of RAGPulse: `timestamp` in seconds, as text; `hash_ids` an object of lists that name
 * the pieces of the prompt. `names` holds the pieces in prompt order; `inputTokens` is what the
 * file says, which is not always the sum of the pieces.
 */
export function parseRagPulseLine(
  text: string,
  blockTokens = RAGPULSE_BLOCK_TOKENS,
): ParsedRequest {
  const fields = parseObject(text);
  if (typeof fields.timestamp !== "string" || !NUMBER.test(fields.timestamp))
    throw refuse(`timestamp is ${show(fields.timestamp)}, not seconds written as text`);
  return {
    atMs: timeOf(Number(fields.timestamp), "timestamp") * 1_000,
    inputTokens: tokensOf(fields.input_length, "input_length"),
    outputTokens: tokensOf(fields.output_length, "output_length"),
    blockTokens,
    names: pieceNamesOf(fields.hash_ids),
    session: fields.session_id === undefined ? undefined : textOf(fields.session_id, "session_id"),
    turn: undefined,
  };
}

function pieceNamesOf(value: unknown): readonly number[] {
  const lists = objectOf(value, "hash_ids");
  const names: number[] = [];
  for (const [kind, { list }] of PIECE_KINDS.entries()) {
    for (const id of listOf(lists[list], `hash_ids.${list}`, PIECES_MAX))
      names.push(pieceName(kind, pieceIdOf(id, `an id in hash_ids.${list}`)));
  }
  return names;
}

/**
 * Requests in order of time (the file is not sorted; equal times keep the file's order), cut into
 * blocks. `inputTokens` is the sum of the pieces.
 */
export async function* ragPulseRequests(source: Source): AsyncGenerator<TraceRequest, void, void> {
  const pieceTokens = await readPieces(source.path);
  const held: PlacedRequest[] = [];
  for await (const parsed of readRequests(source, parseRagPulseLine)) {
    if (held.length === LIMITS.heldRequestsMax)
      throw refuse(`${source.path}:${parsed.line}: more than ${LIMITS.heldRequestsMax} requests`);
    held.push(parsed);
  }
  held.sort((a, b) => a.atMs - b.atMs);
  const cut = createCutter(pieceTokens, source.blockTokens);
  for (const parsed of held) {
    const { blocks, tokens } = atLine(source.path, parsed.line, () => cut(parsed.names));
    yield requestOf({ ...parsed, inputTokens: tokens }, parsed.atMs, blocks);
  }
}

/** One piece at one place of a prompt, known by the pieces before it. */
interface Place {
  /** Number of the first block that ends inside this piece; the others follow it. */
  readonly firstBlock: number;
  /** Number of the part-full block of a prompt that ends with this piece, once there was one. */
  tail: number | undefined;
  readonly next: Map<number, Place>;
}

/**
 * Cuts prompts into blocks. A block stands for everything before its end, hence for the pieces up
 * to the one it ends in: those lie in a tree, one node for each piece after the pieces before it,
 * and a node owns the blocks that end in it. Numbers are given in order of first sight.
 */
function createCutter(
  pieceTokens: ReadonlyMap<number, number>,
  blockTokens: number,
): (names: ArrayLike<number | bigint>) => { blocks: Uint32Array; tokens: number } {
  const root: Place = { firstBlock: 0, tail: undefined, next: new Map() };
  let distinct = 0;

  function tokensOfPiece(name: number): number {
    const tokens = pieceTokens.get(name);
    if (tokens === undefined) {
      const kind = PIECE_KINDS[Math.floor(name / 2 ** 32)]!;
      throw refuse(`${kind.list} ${name % 2 ** 32} is not in ${kind.file}.jsonl`);
    }
    return tokens;
  }

  function enter(place: Place, name: number, ending: number): Place {
    const known = place.next.get(name);
    if (known !== undefined) return known;
    if (distinct + ending + 1 > LIMITS.distinctBlocksMax)
      throw refuse(`more than ${LIMITS.distinctBlocksMax} distinct blocks`);
    const entered: Place = { firstBlock: distinct, tail: undefined, next: new Map() };
    distinct += ending;
    place.next.set(name, entered);
    return entered;
  }

  return (names) => {
    const blocks: number[] = [];
    let place = root;
    let tokens = 0;
    for (let i = 0; i < names.length; i++) {
      const name = Number(names[i]);
      const length = tokensOfPiece(name);
      if (length === 0) continue;
      const ending = Math.floor((tokens + length) / blockTokens) - blocks.length;
      if (blocks.length + ending >= LIMITS.requestBlocksMax)
        throw refuse(`the prompt has more than ${LIMITS.requestBlocksMax} blocks`);
      place = enter(place, name, ending);
      for (let n = 0; n < ending; n++) blocks.push(place.firstBlock + n);
      tokens += length;
    }
    if (tokens % blockTokens !== 0) {
      place.tail ??= distinct++;
      blocks.push(place.tail);
    }
    return { blocks: Uint32Array.from(blocks), tokens };
  };
}
