import type { ErrorShape } from "../endpoint.ts";

const DATA = Buffer.from("data:");
const USAGE = Buffer.from('"usage":');
/** As OpenAI's older APIs have it, and as the Responses API and Anthropic's have it. */
const OUTPUTS = [Buffer.from('"completion_tokens":'), Buffer.from('"output_tokens":')];
const PROMPTS = [Buffer.from('"prompt_tokens":'), Buffer.from('"input_tokens":')];
/** Anthropic's `input_tokens` leaves out what the cache had, and what went there. */
const CACHED = [
  Buffer.from('"cache_read_input_tokens":'),
  Buffer.from('"cache_creation_input_tokens":'),
];
const LF = 0x0a;
const DIGITS_MAX = 12;

/** What tells the events of an API's streams apart. */
interface Marks {
  /** In the last event of a stream that is whole. */
  readonly end: Buffer;
  /** In each event that brings output; null: every event but the last one does. */
  readonly output: Buffer | null;
}

const MARKS: Readonly<Record<ErrorShape, Marks>> = {
  openai: { end: Buffer.from("[DONE]"), output: null },
  responses: { end: Buffer.from('"response.completed"'), output: Buffer.from('.delta"') },
  anthropic: { end: Buffer.from('"message_stop"'), output: Buffer.from('"content_block_delta"') },
};

/**
 * Counts what a worker generated. Each event with output counts as a token until the worker itself
 * says how many there are: engines send one event a step, and `usage` at the end or with each.
 */
export class OutputCount {
  /** The last event came: clients may leave now without missing anything. */
  isDone = false;
  readonly #marks: Marks;
  #events = 0;
  #told: number | null = null;
  #prompt: number | null = null;

  constructor(shape: ErrorShape = "openai") {
    this.#marks = MARKS[shape];
  }

  get tokens(): number {
    return this.#told ?? this.#events;
  }

  /** Tokens of the prompt, where the worker has said how many there are. */
  get promptTokens(): number | null {
    return this.#prompt;
  }

  /** Whole events; whether there was one with output. */
  addEvents(bytes: Uint8Array<ArrayBuffer>): boolean {
    const view = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length);
    const before = this.#events;
    for (let at = view.indexOf(DATA); at >= 0; at = view.indexOf(DATA, at + DATA.length)) {
      if (at > 0 && view[at - 1] !== LF) continue;
      this.#addEvent(view, at + DATA.length);
    }
    this.addUsage(view);
    return this.#events > before;
  }

  #addEvent(view: Buffer, from: number): void {
    const { end, output } = this.#marks;
    if (output === null) {
      const start = view[from] === 0x20 ? from + 1 : from;
      if (view.subarray(start, start + end.length).equals(end)) this.isDone = true;
      else this.#events++;
      return;
    }
    const lineEnd = view.indexOf(LF, from);
    const line = view.subarray(from, lineEnd < 0 ? view.length : lineEnd);
    if (line.includes(output)) this.#events++;
    else if (line.includes(end)) this.isDone = true;
  }

  /** `usage` of an answer, or of an event. The first event of some streams says 0. */
  addUsage(view: Buffer): void {
    const at = view.lastIndexOf(USAGE);
    if (at < 0) return;
    const usage = view.subarray(at);
    for (const key of OUTPUTS) {
      const told = lastNumber(usage, key);
      if (told !== null && told > 0) this.#told = told;
    }
    for (const key of PROMPTS) {
      const told = lastNumber(usage, key);
      if (told === null) continue;
      const all = CACHED.reduce((sum, cached) => sum + (lastNumber(usage, cached) ?? 0), told);
      if (all > 0) this.#prompt = all;
    }
  }
}

function lastNumber(view: Buffer, key: Buffer): number | null {
  const at = view.lastIndexOf(key);
  if (at < 0) return null;
  const start = at + key.length;
  const digits = /^ *([0-9]{1,9})/.exec(view.toString("latin1", start, start + DIGITS_MAX));
  return digits === null ? null : Number(digits[1]);
}
