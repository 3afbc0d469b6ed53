import { encodeReceipt, type MediaType, type Receipt, type RefusalWord } from "../control/index.ts";
import type { AnswerOptions } from "./body.ts";

const STATUS_OF_WORD = {
  malformed: 422,
  unknown_type: 422,
  too_large: 413,
  too_deep: 422,
  forbidden: 403,
  unproven: 403,
  replayed: 409,
  implausible: 422,
  broadcast_refused: 403,
  expired: 409,
  rate_limited: 429,
  id_reused: 409,
  stale: 409,
  fenced: 409,
  busy: 503,
  internal: 500,
} as const satisfies Record<RefusalWord, number>;

/** What was refused for what the host holds now: a budget, blocks that are not transient. */
const CONFLICT = 409;

/** Words with which an HTTP status may come: for the description of the API. */
export const REJECTED_STATUSES: readonly number[] = [
  ...new Set([CONFLICT, ...Object.values(STATUS_OF_WORD)]),
].sort((a, b) => a - b);

/** 200 unless the command as a whole was refused; then what the reason's first word says. */
export function statusOfReceipt({ status, reason = "" }: Receipt): number {
  if (status !== "rejected") return 200;
  const word = /^\w+/.exec(reason)?.[0] ?? "";
  return Object.hasOwn(STATUS_OF_WORD, word) ? STATUS_OF_WORD[word as RefusalWord] : CONFLICT;
}

/** The receipt itself is the body, also of a refusal. */
export function answerReceipt(
  receipt: Receipt,
  type: MediaType,
  options: AnswerOptions = {},
): Response {
  const { status = statusOfReceipt(receipt), headers = {} } = options;
  return new Response(encodeReceipt(receipt, type), {
    status,
    headers: { "content-type": type, ...headers },
  });
}
