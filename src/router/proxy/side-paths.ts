import type { WorkerId } from "../../core/index.ts";
import type { Target } from "../index.ts";
import { refuse, unavailable, workerFailed } from "./answers.ts";
import type { Endpoint, ErrorShape } from "./endpoint.ts";
import type { ProxyParts } from "./exchange.ts";
import { ownHeaders, towardsWorker } from "./headers.ts";
import { clientHeaders, passOn } from "./relay.ts";
import { addressAt } from "./upstream.ts";
import type { WorkerHealth } from "./worker-health.ts";

/**
 * Answers requests without a prompt. Some are answered by the proxy itself, others by a worker that
 * is chosen without regard to load.
 */
export class SidePaths {
  readonly #parts: ProxyParts;
  readonly #health: Pick<WorkerHealth, "out">;

  constructor(parts: ProxyParts, health: Pick<WorkerHealth, "out">) {
    [this.#parts, this.#health] = [parts, health];
  }

  /**
   * Answers a health check with an empty body, as vLLM does. Status 200 while the proxy accepts
   * requests and at least one worker is healthy.
   */
  health(isDraining: boolean): Response {
    const isWell = !isDraining && this.#served().some((target) => this.#isWell(target));
    return new Response(null, { status: isWell ? 200 : 503 });
  }

  /** Answers with the version of a worker's engine. Does not forward the client's credentials. */
  async version(path: string, signal: AbortSignal): Promise<Response> {
    const { settings } = this.#parts;
    const served = this.#served();
    const target = served.find((one) => this.#isWell(one)) ?? served[0];
    if (target === undefined) return refuse(unavailable("no worker is available"));
    return this.#pass(target, "GET", path, ownHeaders(settings.authorization), "openai", signal);
  }

  /**
   * Forwards a request about a stored response to the worker that has the response. If that worker
   * is unknown, forwards to the first worker in the table.
   */
  async stored(
    { id, path }: Extract<Endpoint, { kind: "stored" }>,
    request: Request,
  ): Promise<Response> {
    const { homes, settings } = this.#parts;
    const home = homes.of(id);
    const served = this.#served();
    const target = served.find(({ worker }) => worker === home) ?? served[0];
    if (target === undefined) return refuse(unavailable("no worker is available"), "responses");
    const { method, headers, signal } = request;
    const sent = towardsWorker(headers, settings.authorization);
    return this.#pass(target, method as "GET" | "POST", path, sent, "responses", signal);
  }

  async #pass(
    { url, worker }: Target,
    method: "GET" | "POST",
    path: string,
    headers: ReadonlyMap<string, string>,
    shape: ErrorShape,
    signal: AbortSignal,
  ): Promise<Response> {
    const { upstream, settings } = this.#parts;
    const { showsWorker } = settings;
    const body = method === "POST" ? new Uint8Array(0) : null;
    const order = { method, url: addressAt(url!, path), headers, body, waits: settings };
    const answer = await upstream.open(order, signal);
    const failed = (why: string) => {
      return refuse(workerFailed(`The worker ${worker} failed: ${why}`), shape);
    };
    if (answer.kind === "failed") return failed(answer.why);
    const sent = clientHeaders(answer.headers, showsWorker ? [["x-hearth-worker", worker]] : []);
    if (sent !== null) return passOn(answer, sent);
    answer.close();
    return failed("its answer has a header that HTTP does not allow");
  }

  #served(): Target[] {
    return this.#parts.table.targets.filter(({ url, state }) => url !== null && state !== "gone");
  }

  #isWell({ worker }: { readonly worker: WorkerId }): boolean {
    return !this.#health.out.has(worker);
  }
}

const HOMES_MAX = 65_536;
/**
 * Number of bytes to search for the response id. It is near the start of an answer or of its first
 * event.
 */
const LOOK_BYTES = 1_024;
const ID = /"id": ?"(resp_[A-Za-z0-9_-]{1,128})"/;

/**
 * Records which worker has each stored response (`store` of the Responses API), so that later
 * requests reach the same worker. Keeps the latest 65,536 responses.
 */
export class ResponseHomes {
  readonly #homes = new Map<string, WorkerId>();

  /** Finds the response id in the first bytes of an answer and records its worker. */
  note(bytes: Uint8Array, worker: WorkerId): void {
    const text = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length);
    const id = ID.exec(text.toString("latin1", 0, LOOK_BYTES))?.[1];
    if (id === undefined) return;
    const [oldest] = this.#homes.keys();
    if (this.#homes.size >= HOMES_MAX && oldest !== undefined) this.#homes.delete(oldest);
    this.#homes.set(id, worker);
  }

  /**
   * Returns the worker that has a response. Null if it came through another router, or was dropped
   * at the limit.
   */
  of(id: unknown): WorkerId | null {
    return typeof id === "string" ? (this.#homes.get(id) ?? null) : null;
  }
}
