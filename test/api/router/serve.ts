import { afterAll } from "bun:test";
import {
  type ApiOptions,
  type ApiServer,
  createRouterApi,
  OPEN_ACCESS,
} from "../../../src/api/index.ts";
import { seededRandom, type WorkerId } from "../../../src/core/index.ts";
import { loadNative } from "../../../src/native/index.ts";
import {
  ActiveLoad,
  type PolicyMarks,
  ROUTER_DEFAULTS,
  Router,
  type RouterSettings,
  type WorkerSpec,
  WorkerTable,
} from "../../../src/router/index.ts";
import { ReferenceIndex } from "../../router/prefix-index/reference-index.ts";
import { ManualClock } from "../../support/index.ts";

export const MODEL = "m";

export function spec(worker: string, more: Partial<WorkerSpec> = {}): WorkerSpec {
  return {
    worker: worker as WorkerId,
    rank: 0,
    model: MODEL,
    role: "both",
    url: null,
    totalBlocks: 1_000,
    batchTokensMax: null,
    spaces: [{ kind: "tokens", model: MODEL, blockTokens: 16 }],
    ...more,
  };
}

export interface ServeOptions {
  readonly settings?: Partial<RouterSettings>;
  readonly api?: Partial<ApiOptions & { busyStatus: number }>;
}

/** Starts a router of real parts with its API on a free port. */
export function serveRouter({ settings = {}, api = {} }: ServeOptions = {}) {
  const clock = new ManualClock();
  const table = new WorkerTable();
  const index = new ReferenceIndex();
  const all = { ...ROUTER_DEFAULTS, ...settings };
  const { blockTokens, requestExpiryMs } = all;
  const load = new ActiveLoad({ clock, blockTokens, requestExpiryMs });
  const random = seededRandom(1);
  const parts = { clock, random, native: loadNative(), settings: all, table, index, load };
  const router = new Router(parts);
  const faults: unknown[] = [];
  const told: string[] = [];
  const marks = {
    returning: (session: string) => void told.push(`${session} returns`),
    sessionEnded: (session: string) => void told.push(`${session} ended`),
  } as PolicyMarks;
  const app = createRouterApi(
    {
      ...{ router, table, load, index, marks },
      readiness: () => ({ ready: true, reasons: [] }),
      health: () => [],
      metricsText: async () => "",
      metricsContentType: "text/plain",
      engines: { find: () => null },
      workers: {
        pending: [],
        register: ({ name, ranks, model, url, role }) =>
          Array.from({ length: ranks }, (_, rank) =>
            table.put(spec(name, { rank, model: model ?? "m", url, role })),
          ),
        unregister(worker) {
          const gone = table.targets.filter((target) => target.worker === worker);
          for (const { id } of gone) table.remove(id);
          return gone.length;
        },
      },
    },
    {
      ...{ version: "1", clock, access: OPEN_ACCESS, busyStatus: 529 },
      onFault: (_path, thrown) => void faults.push(thrown),
      ...api,
    },
  );
  const server: ApiServer = app.listen({ port: 0 });
  afterAll(async () => {
    await server[Symbol.asyncDispose]();
    router[Symbol.dispose]();
  });
  const get = (path: string, init?: RequestInit) => fetch(`${server.url}${path}`, init);
  const post = (path: string, body: unknown) =>
    get(path, {
      method: "POST",
      body: typeof body === "string" ? body : JSON.stringify(body),
      headers: { "content-type": "application/json" },
    });
  return { clock, table, index, load, router, server, faults, told, get, post, app };
}
