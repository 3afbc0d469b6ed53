import type { ServiceIdentity, ServiceInfo, ServiceStats } from "@nats-io/services";
import { type Clock, TokenBuckets } from "../core/index.ts";
import type { Bus, BusMessage, ServiceSpec } from "./bus.ts";

const PREFIX = "$SRV";
/** Type names in the responses, which `nats` tools use to distinguish them. */
const TYPES = {
  PING: "io.nats.micro.v1.ping_response",
  INFO: "io.nats.micro.v1.info_response",
  STATS: "io.nats.micro.v1.stats_response",
} as const;
type Verb = keyof typeof TYPES;
/**
 * Maximum discovery replies per second to each verb, and in one burst. A tool sends one request;
 * all monitors together send about one per second.
 */
const ANSWERS_PER_SECOND = 100;
const ANSWERS_AT_ONCE = 200;

/** Request counts of one endpoint. */
export interface Served {
  readonly name: string;
  readonly subject: string;
  requests: number;
  faults: number;
  totalMs: number;
}

/**
 * Replies to `$SRV.PING`, `INFO` and `STATS` requests: those to all services, to this name, and to
 * this id, as the NATS micro-service protocol defines them. The client libraries' own
 * implementation is unsuitable: it takes a new id with each connection, stops when one subscription
 * is refused, and uses queue groups, so that only one process would receive a broadcast. `id` must
 * be unique among all processes. Requests beyond the rate limit are dropped; `ignored` is called
 * for each.
 */
export function answerDiscovery(
  bus: Pick<Bus, "subscribe" | "publish">,
  spec: ServiceSpec,
  id: string,
  served: readonly Served[],
  clock: Clock,
  ignored: () => void,
): void {
  const rates = new TokenBuckets();
  const started = new Date(clock.wallMs()).toISOString();
  const identity = { name: spec.name, id, version: spec.version, metadata: { ...spec.metadata } };
  const answers: Record<Verb, () => object> = {
    PING: () => ({ ...identity, type: TYPES.PING }) satisfies Loose<ServiceIdentity>,
    INFO: () =>
      ({
        ...identity,
        type: TYPES.INFO,
        description: spec.description,
        endpoints: served.map(({ name, subject }) => ({ name, subject, queue_group: "" })),
      }) satisfies Loose<ServiceInfo>,
    STATS: () =>
      ({
        ...identity,
        type: TYPES.STATS,
        started,
        endpoints: served.map(statsOf),
      }) satisfies Loose<ServiceStats>,
  };
  for (const verb of Object.keys(TYPES) as Verb[]) {
    const answer = (message: BusMessage) => {
      if (message.reply === null) return;
      const nowMs = clock.monotonicMs();
      if (!rates.take(verb, nowMs, ANSWERS_PER_SECOND, ANSWERS_AT_ONCE)) return ignored();
      const body = new TextEncoder().encode(JSON.stringify(answers[verb]()));
      bus.publish(message.reply, body);
    };
    for (const subject of [
      `${PREFIX}.${verb}`,
      `${PREFIX}.${verb}.${spec.name}`,
      `${PREFIX}.${verb}.${spec.name}.${id}`,
    ]) {
      bus.subscribe(subject, answer);
    }
  }
}

/** A type of the services module with a string in place of its enum `type`. */
type Loose<Shape> = Omit<Shape, "type"> & { readonly type: string };

function statsOf({ name, subject, requests, faults, totalMs }: Served) {
  const nanoseconds = Math.round(totalMs * 1e6);
  return {
    name,
    subject,
    queue_group: "",
    num_requests: requests,
    num_errors: faults,
    processing_time: nanoseconds,
    average_processing_time: requests === 0 ? 0 : Math.round(nanoseconds / requests),
  };
}
