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
import { PIECE_KINDS, type Piece, pieceIdOf, pieceName, readPieces } from "./ragpulse-pieces.ts";
import { readRequests, readSorted, requestOf, type Source } from "./reader.ts";

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
 * Requests in order of time (the file is not sorted), cut into blocks. `inputTokens` is the sum of
 * the pieces.
 */
export async function* ragPulseRequests(source: Source): AsyncGenerator<TraceRequest, void, void> {
  const pieces = await readPieces(source.path);
  const sorted = await readSorted(readRequests(source, parseRagPulseLine), source.path);
  const cut = createCutter(pieces, source.blockTokens);
  for (const parsed of sorted) {
    const { blocks, tokens } = atLine(source.path, parsed.line, () => cut(parsed.names));
    yield requestOf({ ...parsed, inputTokens: tokens }, parsed.atMs, blocks);
  }
}

type Cutter = (names: ArrayLike<number | bigint>) => { blocks: Uint32Array; tokens: number };

/**
 * Cuts prompts into blocks. A block stands for everything before its end, hence for the pieces up
 * to the one it ends in: those lie in a tree with a place for each piece after the pieces before
 * it, and a place owns the blocks that end in it. Numbers are given in order of first sight.
 */
function createCutter(pieces: ReadonlyMap<number, Piece>, blockTokens: number): Cutter {
  /** `place * piecesMax + piece` → the place of that piece after that place; 0 is the start. */
  const places = new Map<number, number>();
  /** At each place, the first block that ends there; the others follow it. */
  const firstBlock: number[] = [0];
  /**
   * At each place, the part-full block of a prompt that ends there, + 1; 0 before there was one.
   */
  const tail: number[] = [0];
  let distinct = 0;

  function enter(place: number, piece: number, ending: number): number {
    const key = place * LIMITS.piecesMax + piece;
    const known = places.get(key);
    if (known !== undefined) return known;
    if (distinct + ending >= LIMITS.distinctBlocksMax)
      throw refuse(`more than ${LIMITS.distinctBlocksMax} distinct blocks`);
    const entered = firstBlock.push(distinct) - 1;
    tail.push(0);
    distinct += ending;
    places.set(key, entered);
    return entered;
  }

  return (names) => {
    const blocks: number[] = [];
    let place = 0;
    let tokens = 0;
    for (let i = 0; i < names.length; i++) {
      const piece = pieceOf(pieces, Number(names[i]));
      if (piece.tokens === 0) continue;
      const ending = Math.floor((tokens + piece.tokens) / blockTokens) - blocks.length;
      if (blocks.length + ending >= LIMITS.requestBlocksMax)
        throw refuse(`the prompt has more than ${LIMITS.requestBlocksMax} blocks`);
      place = enter(place, piece.number, ending);
      for (let n = 0; n < ending; n++) blocks.push(firstBlock[place]! + n);
      tokens += piece.tokens;
    }
    if (tokens % blockTokens !== 0) {
      if (tail[place] === 0) tail[place] = ++distinct;
      blocks.push(tail[place]! - 1);
    }
    return { blocks: Uint32Array.from(blocks), tokens };
  };
}

function pieceOf(pieces: ReadonlyMap<number, Piece>, name: number): Piece {
  const piece = pieces.get(name);
  if (piece !== undefined) return piece;
  const { list, file } = PIECE_KINDS[Math.floor(name / 2 ** 32)]!;
  throw refuse(`${list} ${name % 2 ** 32} is not in ${file}.jsonl`);
}
