import { stat } from "node:fs/promises";
import { dirname, join } from "node:path";
import {
  atLine,
  listOf,
  objectOf,
  parseObject,
  readLines,
  refuse,
  show,
  textOf,
  timeOf,
  tokensOf,
  wholeOf,
} from "../lines.ts";
import { LIMITS, type ParsedRequest, type TraceRequest } from "../trace.ts";
import { readRequests, readSorted, requestOf, type Source } from "./row-formats.ts";

/**
 * Tokens per block. RAGPulse files name pieces of prompts instead of blocks, so the reader divides
 * prompts into blocks of this size.
 */
export const RAGPULSE_BLOCK_TOKENS = 16;

const PIECES_MAX = 2 ** 14;
const NUMBER = /^\d{1,12}(?:\.\d{1,9})?$/;

/**
 * Parses one request of RAGPulse: `timestamp` in seconds, as text; `hash_ids`, an object of lists
 * that name the pieces of the prompt. In the result, `names` contains the pieces in prompt order,
 * and `inputTokens` the number in the file, which may differ from the sum of the pieces.
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
 * Yields the requests in order of time (the file is not sorted), divided into blocks. `inputTokens`
 * is the sum of the pieces' tokens.
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
 * Creates a function that divides prompts into blocks. A block's number identifies everything
 * before its end, hence all pieces up to the one in which it ends. The pieces form a tree with a
 * node for each piece after given earlier pieces; each node has the blocks that end in it. Numbers
 * are assigned in order of first occurrence.
 */
function createCutter(pieces: ReadonlyMap<number, Piece>, blockTokens: number): Cutter {
  /** `node * piecesMax + piece` → the node of this piece below that node; node 0 is the root. */
  const places = new Map<number, number>();
  /**
   * For each node, the number of the first block that ends in it; the others have consecutive
   * numbers.
   */
  const firstBlock: number[] = [0];
  /**
   * For each node, the number + 1 of the partial last block of a prompt that ends there; 0 if there
   * was none.
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
      for (let n = 0; n < ending; n++) blocks.push(firstBlock[place] + n);
      tokens += piece.tokens;
    }
    if (tokens % blockTokens !== 0) {
      if (tail[place] === 0) tail[place] = ++distinct;
      blocks.push(tail[place] - 1);
    }
    return { blocks: Uint32Array.from(blocks), tokens };
  };
}

function pieceOf(pieces: ReadonlyMap<number, Piece>, name: number): Piece {
  const piece = pieces.get(name);
  if (piece !== undefined) return piece;
  const { list, file } = PIECE_KINDS[Math.floor(name / 2 ** 32)];
  throw refuse(`${list} ${name % 2 ** 32} is not in ${file}.jsonl`);
}

/**
 * The kinds of pieces, in the order in which they occur in a RAGPulse prompt, and the file of each.
 */
export const PIECE_KINDS = [
  { list: "sys_prompt", id: "sys_prompt_id", file: "1_sys_prompt" },
  { list: "passages_ids", id: "passage_id", file: "2_passages" },
  { list: "history", id: "history_id", file: "3_history" },
  { list: "web_search", id: "web_search_id", file: "5_web_search" },
  { list: "user_input", id: "user_input_id", file: "4_user_input" },
] as const;

export const RAGPULSE_TRACE_FILE = "0_trace";
const JSONL_ENDINGS = [".jsonl", ".jsonl.gz", ".jsonl.zst"] as const;

const PIECE_IDS = 2 ** 32;
const PIECE_TOKENS_MAX = 2 ** 20;

/** Returns one number that identifies a piece of any kind. */
function pieceName(kind: number, id: number): number {
  return kind * PIECE_IDS + id;
}

function pieceIdOf(value: unknown, what: string): number {
  return wholeOf(value, what, PIECE_IDS - 1);
}

interface ParsedPiece {
  readonly name: number;
  readonly tokens: number;
}

/**
 * Parses one line of a companion file, which gives a piece's length: `{"passage_id": 0,
 * "token_length": 84}`.
 */
export function parsePieceLine(text: string): ParsedPiece {
  const fields = parseObject(text);
  const kind = PIECE_KINDS.findIndex(({ id }) => fields[id] !== undefined);
  if (kind < 0)
    throw refuse(
      `not a piece of a prompt: expected one of ${PIECE_KINDS.map(({ id }) => id).join(", ")}`,
    );
  const { id } = PIECE_KINDS[kind];
  const tokens = tokensOf(fields.token_length, "token_length");
  if (tokens > PIECE_TOKENS_MAX) throw refuse(`token_length is over ${PIECE_TOKENS_MAX}`);
  return { name: pieceName(kind, pieceIdOf(fields[id], id)), tokens };
}

interface Piece {
  /** Number of the piece; numbers run from 0 without gaps. */
  readonly number: number;
  readonly tokens: number;
}

/**
 * Reads all pieces, by their names, from the five companion files in the folder of the requests.
 */
async function readPieces(tracePath: string): Promise<ReadonlyMap<number, Piece>> {
  const pieces = new Map<number, Piece>();
  const folder = dirname(tracePath);
  for (const { file } of PIECE_KINDS) {
    const path = await findJsonl(folder, file);
    if (path === null)
      throw refuse(
        `${tracePath}: the lengths of its prompt pieces are missing: ` +
          `put ${file}.jsonl.gz of the same release beside it`,
      );
    for await (const { number, text } of readLines(path)) {
      atLine(path, number, () => {
        const { name, tokens } = parsePieceLine(text);
        const known = pieces.get(name);
        if (known !== undefined && known.tokens !== tokens)
          throw refuse(`${tokens} tokens for a piece that had ${known.tokens} before`);
        if (pieces.size === LIMITS.piecesMax) throw refuse(`more than ${LIMITS.piecesMax} pieces`);
        if (known === undefined) pieces.set(name, { number: pieces.size, tokens });
      });
    }
  }
  return pieces;
}

/**
 * Returns the path of the JSON lines file `name` in `folder`, plain or compressed; null if there is
 * none.
 */
export async function findJsonl(folder: string, name: string): Promise<string | null> {
  for (const ending of JSONL_ENDINGS) {
    const path = join(folder, name + ending);
    const found = await stat(path).then(
      (entry) => entry.isFile(),
      () => false,
    );
    if (found) return path;
  }
  return null;
}
