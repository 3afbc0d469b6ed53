import { stat } from "node:fs/promises";
import { dirname, join } from "node:path";
import { atLine, parseObject, refuse, tokensOf, wholeOf } from "../fields.ts";
import { readLines } from "../lines.ts";
import { LIMITS } from "../trace.ts";

/** The parts of a RAGPulse prompt in the order in which they stand in it, and the file of each. */
export const PIECE_KINDS = [
  { list: "sys_prompt", id: "sys_prompt_id", file: "1_sys_prompt" },
  { list: "passages_ids", id: "passage_id", file: "2_passages" },
  { list: "history", id: "history_id", file: "3_history" },
  { list: "web_search", id: "web_search_id", file: "5_web_search" },
  { list: "user_input", id: "user_input_id", file: "4_user_input" },
] as const;

export const RAGPULSE_TRACE_FILE = "0_trace";
export const JSONL_ENDINGS = [".jsonl", ".jsonl.gz", ".jsonl.zst"] as const;

const PIECE_IDS = 2 ** 32;
const PIECE_TOKENS_MAX = 2 ** 20;

/** One number for a piece of any kind. */
export function pieceName(kind: number, id: number): number {
  return kind * PIECE_IDS + id;
}

export function pieceIdOf(value: unknown, what: string): number {
  return wholeOf(value, what, PIECE_IDS - 1);
}

export interface ParsedPiece {
  readonly name: number;
  readonly tokens: number;
}

/** One line of a companion file: `{"passage_id": 0, "token_length": 84}`. */
export function parsePieceLine(text: string): ParsedPiece {
  const fields = parseObject(text);
  const kind = PIECE_KINDS.findIndex(({ id }) => fields[id] !== undefined);
  if (kind < 0)
    throw refuse(
      `no piece of a prompt: wants one of ${PIECE_KINDS.map(({ id }) => id).join(", ")}`,
    );
  const { id } = PIECE_KINDS[kind]!;
  const tokens = tokensOf(fields.token_length, "token_length");
  if (tokens > PIECE_TOKENS_MAX) throw refuse(`token_length is over ${PIECE_TOKENS_MAX}`);
  return { name: pieceName(kind, pieceIdOf(fields[id], id)), tokens };
}

export interface Piece {
  /** From 0, without gaps. */
  readonly number: number;
  readonly tokens: number;
}

/** Every piece by its name, from the five companions that lie beside the requests. */
export async function readPieces(tracePath: string): Promise<ReadonlyMap<number, Piece>> {
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

/** `name` in `folder` as JSON lines, plain or compressed; null where there is none. */
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
