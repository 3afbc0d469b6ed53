import { type Clock, HearthError } from "../../../core/index.ts";
import type { ReasoningTokens } from "../observer.ts";
import type { EncodeOptions } from "./encoder.ts";
import type { PromptTokens, TokenAnswer, TokenModelFiles, TokenOrder } from "./protocol.ts";
import { TokenServer } from "./token-server.ts";

export interface TokenPoolOptions {
  readonly clock: Clock;
  readonly models: readonly TokenModelFiles[];
  /** Number of threads that tokenise. 0: tokenise on the calling thread. */
  readonly threads: number;
  readonly cacheTokens: number;
  /** Timeout in ms of tokenising a prompt. A late prompt is routed without tokens. */
  readonly timeMs: number;
  /** Called if a prompt could not be tokenised. `why` may contain the template's error message. */
  readonly onFailed?: (model: string, why: string) => void;
}

/** Maximum prompts in the queue of each thread. Further prompts are routed without tokens. */
const WAITING_MAX = 256;
/** Multiple of `timeMs` after which a thread without an answer is replaced. */
const HUNG_TIMES = 5;
/**
 * Maximum difference between the queue of the thread that has a conversation cached and the
 * shortest queue. Above it, another thread is chosen.
 */
const LONGER_MAX = 4;
/** Number of characters at the start of a prompt that identify its conversation. */
const HEAD = 512;

/** Tokenises prompts as the engine of their model does, on a pool of threads. */
export class Tokens implements Disposable {
  readonly #options: TokenPoolOptions;
  readonly #backends: TokenBackend[] = [];
  readonly #reasoning = new Map<string, ReasoningTokens | null>();
  readonly #counts = {
    prompts: 0,
    failed: 0,
    late: 0,
    /** Number of threads that were replaced. */
    restarts: 0,
  };
  #nextId = 1;
  #isClosed = false;

  private constructor(options: TokenPoolOptions) {
    this.#options = options;
  }

  /** Opens the files of all models. Rejects with CONFIG_INVALID if one cannot be used. */
  static async open(options: TokenPoolOptions): Promise<Tokens> {
    const pool = new Tokens(options);
    const { threads, models } = options;
    if (models.length === 0) return pool;
    for (let i = 0; i < Math.max(1, threads); i++) pool.#backends.push(pool.#start());
    const loads = pool.#backends.flatMap((backend) =>
      models.map((files) => pool.#load(backend, files)),
    );
    const failed = (await Promise.all(loads)).find((answer) => answer.kind === "failed");
    if (failed === undefined) return pool;
    pool[Symbol.dispose]();
    throw new HearthError("CONFIG_INVALID", failed.why);
  }

  get counts() {
    return { ...this.#counts };
  }

  /**
   * Returns the token ids that open and close a model's reasoning. Null if its vocabulary has none,
   * or is not loaded yet.
   */
  reasoning(model: string): ReasoningTokens | null {
    return this.#reasoning.get(model) ?? null;
  }

  /**
   * Returns the tokens of a chat completion request. Null if the timeout has passed, the prompt
   * cannot be tokenised, or the model has no tokenizer.
   */
  chat(model: string, body: string): Promise<PromptTokens | null> {
    return this.#ask(model, body, null);
  }

  text(model: string, text: string, options: EncodeOptions): Promise<PromptTokens | null> {
    return this.#ask(model, text, options);
  }

  /** Returns the tokens of a model's output, without special tokens around it. */
  output(model: string, text: string): Promise<PromptTokens | null> {
    return this.#ask(model, text, { addSpecial: false, truncation: null });
  }

  [Symbol.dispose](): void {
    this.#isClosed = true;
    for (const backend of this.#backends.splice(0)) backend.end();
  }

  #start(): TokenBackend {
    const { threads, clock } = this.#options;
    return threads === 0 ? createLocalBackend(clock) : createThreadBackend();
  }

  async #load(backend: TokenBackend, files: TokenModelFiles): Promise<TokenAnswer> {
    const { cacheTokens } = this.#options;
    const answer = await backend.ask({ kind: "load", id: this.#nextId++, cacheTokens, files });
    if (answer.kind === "loaded") this.#reasoning.set(files.name, answer.reasoning);
    return answer;
  }

  async #ask(
    model: string,
    text: string,
    encode: EncodeOptions | null,
  ): Promise<PromptTokens | null> {
    const backend = this.#reasoning.has(model) ? this.#backendFor(text) : null;
    if (backend === null) return null;
    this.#counts.prompts++;
    const order: TokenOrder = { kind: "prompt", id: this.#nextId++, model, text, encode };
    const answer = await this.#inTime(backend, order);
    if (answer?.kind === "tokens") return answer;
    if (answer === null) this.#counts.late++;
    else this.#counts.failed++;
    if (answer?.kind === "failed") this.#options.onFailed?.(model, answer.why);
    return null;
  }

  /**
   * Sends an order to a thread and waits for the answer. Returns null after the timeout. Replaces a
   * thread that hangs.
   */
  #inTime(backend: TokenBackend, order: TokenOrder): Promise<TokenAnswer | null> {
    const { clock, timeMs } = this.#options;
    return new Promise((resolve) => {
      const late = clock.after(timeMs, () => resolve(null));
      const hung = clock.after(timeMs * HUNG_TIMES, () => this.#replace(backend));
      void backend.ask(order).then((answer) => {
        late[Symbol.dispose]();
        hung[Symbol.dispose]();
        resolve(answer);
        if (backend.isGone) this.#replace(backend);
      });
    });
  }

  /**
   * Chooses a thread. Prompts of one conversation go to the same thread, which has most of their
   * pieces cached. Returns null if all queues are full.
   */
  #backendFor(text: string): TokenBackend | null {
    const shortest = Math.min(...this.#backends.map((backend) => backend.waiting));
    if (this.#backends.length === 0 || shortest >= WAITING_MAX) return null;
    const head = Bun.hash.xxHash3(text.slice(0, HEAD));
    const preferred = this.#backends[Number(head % BigInt(this.#backends.length))];
    if (preferred.waiting <= shortest + LONGER_MAX) return preferred;
    return this.#backends.find((backend) => backend.waiting === shortest)!;
  }

  #replace(backend: TokenBackend): void {
    const at = this.#backends.indexOf(backend);
    if (at < 0 || this.#isClosed) return;
    this.#counts.restarts++;
    const fresh = this.#start();
    this.#backends[at] = fresh;
    backend.end();
    for (const files of this.#options.models) void this.#load(fresh, files);
  }
}

/** Executes tokenising orders on one thread. After the thread has ended, all orders fail. */
interface TokenBackend {
  ask(order: TokenOrder): Promise<TokenAnswer>;
  /** Number of orders without an answer. */
  readonly waiting: number;
  readonly isGone: boolean;
  end(): void;
}

/**
 * True in the compiled executable. There, this code is at the root of the file system, and the
 * worker is an entry point at its path below `src`. In the source tree, the worker is next to this
 * file.
 */
const isInExecutable = import.meta.url.includes("/$bunfs/");
const WORKER = isInExecutable ? "./router/proxy/tokens/token-worker.ts" : "./token-worker.ts";

function createThreadBackend(): TokenBackend {
  const worker = new Worker(new URL(WORKER, import.meta.url).href);
  const waiting = new Map<number, (answer: TokenAnswer) => void>();
  let gone: string | null = null;
  const end = (why: string) => {
    gone ??= why;
    for (const [id, resolve] of waiting) resolve({ kind: "failed", id, why: gone });
    waiting.clear();
  };
  worker.onmessage = ({ data }: MessageEvent<TokenAnswer>) => {
    waiting.get(data.id)?.(data);
    waiting.delete(data.id);
  };
  worker.onerror = ({ message }) => end(`the thread failed: ${message}`);
  worker.addEventListener("close", () => end("the thread has ended"));
  return {
    ask(order) {
      if (gone !== null) return Promise.resolve({ kind: "failed", id: order.id, why: gone });
      return new Promise((resolve) => {
        waiting.set(order.id, resolve);
        worker.postMessage(order);
      });
    },
    get waiting() {
      return waiting.size;
    },
    get isGone() {
      return gone !== null;
    },
    end() {
      end("the tokenizer is closed");
      worker.terminate();
    },
  };
}

/**
 * Returns a backend that tokenises on the calling thread. It blocks the event loop until a prompt
 * is done.
 */
function createLocalBackend(clock: Pick<Clock, "wallMs">): TokenBackend {
  const server = new TokenServer(clock);
  return {
    ask: (order) => Promise.resolve(server.answer(order)),
    waiting: 0,
    isGone: false,
    end: () => undefined,
  };
}

/** Average bytes of a token. It is about the same in most vocabularies. */
const BYTES = 4;

/**
 * Makes one token of every four bytes of a prompt, for models without a tokenizer. Equal prefixes
 * have equal tokens, so they match predicted prefixes, but never the tokens that engines report.
 */
export function roughTokens(text: string): Uint32Array {
  const bytes = new TextEncoder().encode(text);
  const whole = Math.floor(bytes.length / BYTES);
  const tokens = new Uint32Array(Math.ceil(bytes.length / BYTES));
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  for (let i = 0; i < whole; i++) tokens[i] = view.getUint32(i * BYTES, true);
  for (let i = whole * BYTES; i < bytes.length; i++) {
    tokens[whole] = (tokens[whole] | (bytes[i] << ((i % BYTES) * 8))) >>> 0;
  }
  return tokens;
}

/** Returns the estimated number of tokens of a text with this many bytes. */
export function roughCount(bytes: number): number {
  return Math.ceil(bytes / BYTES);
}
