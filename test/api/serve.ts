import { afterAll } from "bun:test";
import {
  type Access,
  AgentMetrics,
  type Api,
  type ApiOptions,
  type ApiServer,
  createApi,
  OPEN_ACCESS,
  type PurgeOutcome,
  type PurgeRequest,
  type Readiness,
  type RefusalNote,
  type SessionReport,
  type StatusReport,
  Tokens,
} from "../../src/api/index.ts";
import type { Sender } from "../../src/control/index.ts";
import type { HealthProblem } from "../../src/observability/index.ts";
import { ManualClock } from "../support/index.ts";
import { agentSources } from "./agent-sources.ts";
import { FakeControl } from "./fake-control.ts";
import { FakePeers } from "./fake-peers.ts";

export const STATUS: StatusReport = {
  version: "1.2.3",
  worker_id: "gpu-01",
  incarnation: "18446744073709551615",
  state: "ready",
  uptime_seconds: 1.5,
  arena: { bytes: 8192, ready_bytes: 4096, locked_bytes: 0, page_bytes: 4096, huge: false },
  ram: {
    blocks: 2,
    bytes: 100,
    capacity_bytes: 8192,
    slots: [{ slot_bytes: 4096, slots: 2, used: 2 }],
    damaged_blocks: 1,
    false_reports: 2,
    scrubbed_bytes: 300,
  },
  ssd: {
    blocks: 3,
    bytes: 300,
    used_bytes: 12_288,
    capacity_bytes: 2 ** 20,
    queued_blocks: 1,
    queued_bytes: 100,
    reading: 0,
    quarantined_files: 0,
    method: "threads",
    direct: true,
    registered: false,
    writes_stopped: null,
    reads_stopped: null,
    counters: { written_blocks: 3 },
  },
  control: {
    pins: { holds: 2, blocks: 5, bytes: 500 },
    retains: { holds: 1, blocks: 1, bytes: 100 },
    leases: { holds: 0, blocks: 0, bytes: 0 },
    kept_bytes: 500,
    kept_bytes_max: 4096,
    running: 1,
    ledger_pending: 3,
    ledger_failing: null,
  },
  nats: {
    status: "reconnecting",
    server: null,
    why: "refused",
    reconnects: 2,
    queued: 4,
    dropped: 1,
    stream: { name: "S", status: "missing", why: "stream not found", handled: 3, given_up: 0 },
    workers: { bucket: "kv-workers", why: null },
  },
  peers: null,
  feed: null,
  gpu: null,
  rdma: null,
  namespaces: ["ab".repeat(32)],
  table: { blocks: 2, capacity: 10, gpu_blocks: 0, namespaces: 1 },
  engine: {
    socket: "/run/hearth/engine.sock",
    connections: 1,
    slots_held: 0,
    slots_quarantined: 0,
    frames: 17,
    cut_off: 0,
    refused: 0,
  },
  sessions: 3,
  health: [],
  counters: { committed_blocks: 2 },
  build: { commit: "abc", runtime: "Bun", native: "ReleaseSafe" },
};

export function sessionOf(id: bigint): SessionReport {
  return {
    id: id.toString(),
    namespace: "ab".repeat(32),
    idle_seconds: 1.5,
    depth: 4,
    ram: { blocks: 2, bytes: 200 },
    ssd: { blocks: 3, bytes: 300 },
  };
}

/** Values that the services return. Tests change them while the server runs. */
export interface Told {
  status: () => StatusReport;
  readiness: Readiness;
  health: HealthProblem[];
  sessions: SessionReport[];
  purge: (blocks: readonly PurgeRequest[]) => PurgeOutcome[];
  readonly control: FakeControl;
  readonly peers: FakePeers;
  /** Senders of purges and persists. */
  readonly senders: Sender[];
  readonly faults: { path: string; thrown: unknown }[];
  /** Refused callers as reported to the agent. */
  readonly refused: RefusalNote[];
  /** Refused callers since the start, by reason. */
  refusals: Api["refusals"];
  readonly clock: ManualClock;
}

export interface Served extends ApiServer {
  readonly told: Told;
  get(path: string, init?: RequestInit): Promise<Response>;
}

/** Access by one token with every role. */
export function oneToken(token: string): Access {
  const tokens = new Tokens([{ name: "token_file", role: "purge", token }]);
  return { ...OPEN_ACCESS, tokens };
}

/** Fake services of an API, with the values that they return. */
export function servicesFor() {
  const clock = new ManualClock();
  const metrics = new AgentMetrics();
  const sources = agentSources(clock);
  const told: Told = {
    status: () => STATUS,
    readiness: { ready: true, reasons: [] },
    health: [],
    sessions: [],
    purge: (blocks) => blocks.map(() => "done" as const),
    control: new FakeControl(),
    peers: new FakePeers(),
    senders: [],
    faults: [],
    refused: [],
    refusals: () => new Map(),
    clock,
  };
  const services = {
    status: () => told.status(),
    readiness: () => told.readiness,
    health: () => told.health,
    sessions(after: number, limit: number) {
      const sessions = told.sessions.slice(after, after + limit);
      const next = after + limit < told.sessions.length ? after + limit : null;
      return { sessions, next };
    },
    session: (id: bigint) => told.sessions.filter((one) => one.id === id.toString()),
    async purge(blocks: readonly PurgeRequest[], sender: Sender) {
      told.senders.push(sender);
      return told.purge(blocks);
    },
    async persist(sender: Sender) {
      told.senders.push(sender);
      return { written: 4, skipped: 0, durable: true };
    },
    metricsText: () => metrics.text(() => ({ ...sources, refusals: told.refusals() })),
    metricsContentType: metrics.contentType,
    control: told.control,
    peers: told.peers,
  };
  return { services, told, clock };
}

/** Starts a real server on a free port. It is closed after the calling file's tests. */
export function serve(options: Partial<ApiOptions> & { readonly host?: string } = {}): Served {
  const { services, told, clock } = servicesFor();
  const api = createApi(services, {
    version: "1.2.3",
    clock,
    access: OPEN_ACCESS,
    onRefused: (note) => void told.refused.push(note),
    onFault: (path, thrown) => void told.faults.push({ path, thrown }),
    ...options,
  });
  told.refusals = () => api.refusals();
  const server = api.listen(
    options.host === undefined ? { port: 0 } : { port: 0, host: options.host },
  );
  afterAll(() => server[Symbol.asyncDispose]());
  return {
    ...server,
    [Symbol.asyncDispose]: () => server[Symbol.asyncDispose](),
    told,
    get: (path, init) => fetch(`${server.url}${path}`, init),
  };
}

/** Returns the body of an answer, which must be problem+json. */
export async function problem(answer: Response): Promise<Record<string, unknown>> {
  const type = answer.headers.get("content-type");
  if (type !== "application/problem+json") throw new Error(`content type ${type}`);
  const body = (await answer.json()) as Record<string, unknown>;
  if (body.status !== answer.status) throw new Error(`status ${answer.status} says ${body.status}`);
  return body;
}

/**
 * Sends a hand-written request, with headers that fetch would not send, and returns the status
 * line.
 */
export async function raw(port: number, head: string): Promise<string> {
  const { promise, resolve, reject } = Promise.withResolvers<string>();
  let seen = "";
  await Bun.connect({
    hostname: "127.0.0.1",
    port,
    socket: {
      open: (socket) => void socket.write(`${head}\r\nConnection: close\r\n\r\n`),
      data: (_socket, bytes) => {
        seen += bytes.toString();
      },
      close: () => resolve(seen.split("\r\n")[0]!),
      error: (_socket, error) => reject(error),
    },
  });
  return promise;
}
