import { seededRandom, systemClock, type WorkerId } from "../../../src/core/index.ts";
import { loadNative } from "../../../src/native/index.ts";
import {
  ActiveLoad,
  ROUTER_DEFAULTS,
  Router,
  type RouterObserver,
  type RouterSettings,
  type WorkerRole,
  WorkerTable,
} from "../../../src/router/index.ts";
import {
  OpenAiProxy,
  PROXY_DEFAULTS,
  PROXY_MODEL_DEFAULTS,
  type ProxyModel,
  type ProxyOptions,
  type ProxySettings,
} from "../../../src/router/proxy/index.ts";
import { ReferenceIndex } from "../prefix-index/reference-index.ts";
import { MockEngine } from "./mock-engine.ts";

export const MODEL = "acme/tiny-chat";

export interface RigOptions {
  readonly settings?: Partial<ProxySettings>;
  readonly model?: Partial<ProxyModel>;
  readonly router?: Partial<RouterSettings>;
  readonly onTokens?: ProxyOptions["onTokens"];
  readonly onShort?: () => void;
}

/** A router without events, a proxy in front of it on a port, and engines added by tests. */
export class Rig implements AsyncDisposable {
  readonly table: WorkerTable;
  readonly router: Router & Disposable;
  readonly proxy: OpenAiProxy;
  readonly faults: unknown[];
  /** Exclusions of workers because of their health: "NAME out", "NAME back". */
  readonly workers: string[];
  /** Calls that the router received: "routed ID", "prefilled ID", "freed ID". */
  readonly told: string[] = [];
  readonly engines: MockEngine[] = [];
  readonly #server: Bun.Server<undefined>;

  static async open(options: RigOptions = {}): Promise<Rig> {
    const table = new WorkerTable();
    const random = seededRandom(7);
    const settings = { ...ROUTER_DEFAULTS, useKvEvents: false, ...options.router };
    const clock = systemClock;
    const router = new Router({
      clock,
      random,
      native: loadNative(),
      settings,
      table,
      index: new ReferenceIndex(),
      load: new ActiveLoad({ clock, ...loadOf(settings) }),
    });
    const models = [{ ...PROXY_MODEL_DEFAULTS, name: MODEL, ...options.model }];
    const faults: unknown[] = [];
    const workers: string[] = [];
    const proxy = await OpenAiProxy.open({
      ...{ clock, random, router, table },
      // Health checks are off by default, since tests count the engines' requests.
      settings: { ...PROXY_DEFAULTS, healthEveryMs: null, models, ...options.settings },
      onFault: (thrown) => void faults.push(thrown),
      onWorker: (worker, why) => void workers.push(`${worker} ${why === null ? "back" : "out"}`),
      ...(options.onTokens === undefined ? {} : { onTokens: options.onTokens }),
      ...(options.onShort === undefined ? {} : { onShort: options.onShort }),
    });
    return new Rig(table, router, proxy, faults, workers);
  }

  private constructor(
    table: WorkerTable,
    router: Router & Disposable,
    proxy: OpenAiProxy,
    faults: unknown[],
    workers: string[],
  ) {
    [this.table, this.router, this.proxy] = [table, router, proxy];
    [this.faults, this.workers] = [faults, workers];
    const observer: RouterObserver = {
      routed: ({ requestId }) => void this.told.push(`routed ${requestId}`),
      prefillComplete: (id) => void this.told.push(`prefilled ${id}`),
      freed: (id, why) => void this.told.push(`${why === "free" ? "freed" : why} ${id}`),
    };
    router.listen(observer);
    this.#server = Bun.serve({
      port: 0,
      hostname: "127.0.0.1",
      idleTimeout: 10,
      maxRequestBodySize: 1024 * 1024 * 1024,
      development: false,
      fetch: (request, server) => {
        return proxy.fetch(request, { onBody: () => server.timeout(request, 0) });
      },
    });
  }

  get url(): string {
    return `http://127.0.0.1:${this.#server.port}`;
  }

  /** Adds a worker with a mock engine. */
  engine(name: string, kind: "vllm" | "sglang" = "vllm", role: WorkerRole = "both"): MockEngine {
    const engine = new MockEngine(kind, MODEL);
    this.engines.push(engine);
    this.worker(name, engine.url, role);
    return engine;
  }

  worker(name: string, url: string | null, role: WorkerRole = "both", rank = 0): void {
    this.table.put({
      worker: name as WorkerId,
      rank,
      model: MODEL,
      role,
      url,
      totalBlocks: null,
      batchTokensMax: null,
      spaces: [{ kind: "tokens", model: MODEL, blockTokens: 16 }],
    });
  }

  post(path: string, body: unknown, init: RequestInit = {}): Promise<Response> {
    return fetch(`${this.url}${path}`, {
      ...init,
      method: "POST",
      headers: { "content-type": "application/json", ...(init.headers as object) },
      body: typeof body === "string" ? body : JSON.stringify(body),
    });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.proxy[Symbol.asyncDispose]();
    await this.#server.stop(true);
    this.router[Symbol.dispose]();
    for (const engine of this.engines) engine[Symbol.dispose]();
  }
}

function loadOf({ blockTokens, requestExpiryMs }: RouterSettings) {
  return { blockTokens, requestExpiryMs };
}
