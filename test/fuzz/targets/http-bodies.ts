import { createApi, OPEN_ACCESS } from "../../../src/api/index.ts";
import { decodeCommand } from "../../../src/control/index.ts";
import { type Random, randomBelow, systemClock } from "../../../src/core/index.ts";
import type { ExplainQuery } from "../../../src/store/index.ts";
import { FakeControl } from "../../api/fake-control.ts";
import { FakePeers } from "../../api/fake-peers.ts";
import { must, shapeOf, type Target } from "../target.ts";
import { bytesOf, digits, oneOf, textOf } from "./text-input.ts";

const HEX = "0123456789abcdef".repeat(4);
/** Whose body or query is damaged; the first byte of an input is one of them. */
const ROUTES = [
  "POST /v1/commands",
  "POST /v1/commands?wait=false",
  "POST /hicache/pin_blocks",
  "POST /hicache/unpin_blocks",
  "POST /v1/explain",
  "POST /v1/purge",
  "POST /flush_cache",
  "GET /v1/tree?",
  "GET /v1/explain?names=",
  "GET /v1/pins?",
  "GET /v1/leases?",
  "GET /v1/events?",
  "GET /v1/commands/",
  "GET /v1/pulls?key=",
] as const;
const TYPES = ["application/json", "application/msgpack", "text/plain", "", "multipart/form-data"];
const STATUSES: ReadonlySet<number> = new Set([200, 202, 400, 403, 404, 405, 413, 422]);
const REFUSED = 400;

const BODIES = [
  '{"type":"Cache","block_hashes":[18446744073709551615,-1],"pin":true,"id":"a"}',
  '{"block_hashes":[111,222],"owner":"me","ttl_seconds":60}',
  '{"block_hashes":[1],"__proto__":{"owner":"x"},"constructor":{"prototype":1}}',
  `{"names":[5,"${HEX}","${HEX}/3"]}`,
  `{"tokens":[1,2,3,4294967295],"namespace":"${HEX}","block_tokens":2,"layer":0}`,
  `{"blocks":[{"digest":"${HEX}","layer":7}]}`,
  `${"[".repeat(30_000)}`,
  `{"type":"Cache","pin":true,"block_hashes":${"[".repeat(100_000)}${"]".repeat(100_000)}}`,
  `{"blocks":${"[".repeat(900)}${"]".repeat(900)}}`,
  '{"block_hashes":[1e400,-0,1.5],"block_hashes":[]}',
];
const QUERIES = [
  `root=${HEX}/7&depth=3&limit=5&fields=digest,tiers&after=x`,
  "root=-9223372036854775808&limit=1000",
  `${HEX},18446744073709551615,5`,
  "kind=retain&owner=a%20b&after=9007199254740991",
  "a%2Fb?issuer=router-1",
  "%00%ff%zz&&==[]",
];

function input(route: number, type: number, text: string): Uint8Array {
  return Uint8Array.of(route, type, ...bytesOf(text));
}

function generate(random: Random): Uint8Array {
  const route = randomBelow(random, ROUTES.length);
  const type = random.u32() % 4 === 0 ? randomBelow(random, TYPES.length) : 0;
  if (ROUTES[route]!.startsWith("GET")) return input(route, type, oneOf(QUERIES, random));
  const hashes = Array.from({ length: randomBelow(random, 8) }, () =>
    digits(1 + randomBelow(random, 24), random),
  );
  const member = oneOf(["block_hashes", "names", "tokens", "block_keys"], random);
  const rest = oneOf(["", ',"pin":true,"type":"Cache"', `,"namespace":"${HEX}"`], random);
  return input(route, type, `{"${member}":[${hashes.join(",")}]${rest},"block_tokens":16}`);
}

function requestOf(bytes: Uint8Array): Request | null {
  const route = ROUTES[(bytes[0] ?? 0) % ROUTES.length]!;
  const [method, path] = route.split(" ") as [string, string];
  const rest = bytes.subarray(2);
  if (method === "GET") {
    const url = URL.parse(`http://localhost${path}${textOf(rest)}`);
    return url === null ? null : new Request(url.href, { method });
  }
  const type = TYPES[(bytes[1] ?? 0) % TYPES.length]!;
  const headers: Record<string, string> = type === "" ? {} : { "content-type": type };
  return new Request(`http://localhost${path}`, { method, headers, body: Uint8Array.from(rest) });
}

/** What reaches the services is what they may be given. */
function checkQuery(query: ExplainQuery): void {
  if ("names" in query) must(query.names.length > 0, "there are names");
  else must(query.namespace.length === 32 && query.blockTokens >= 1, "a prompt has its measures");
}

function checkAsked(control: FakeControl, isPin: boolean): void {
  for (const { body, contentType } of control.submitted.splice(0)) {
    if (!isPin) continue;
    const decoded = decodeCommand(body, contentType);
    must(!decoded.ok || decoded.command.type === "Cache", "a pin is no other command");
    must(!decoded.ok || decoded.command.owner !== null, "a pin has an owner");
  }
  control.flushes.length = 0;
  control.explained.splice(0).forEach(checkQuery);
  for (const { depthMax, limit } of control.trees.splice(0)) {
    must(depthMax >= 0 && depthMax <= 1_000_000, "depth is bounded");
    must(limit >= 1 && limit <= 1_000, "a page is bounded");
  }
}

/** Bodies and queries of HTTP requests, up to the services. */
export function httpBodies(): Target {
  const control = new FakeControl();
  const faults: unknown[] = [];
  const services = {
    status(): never {
      throw new Error("nobody asks for the status");
    },
    readiness: () => ({ ready: true, reasons: [] }),
    health: () => [],
    sessions: () => ({ sessions: [], next: null }),
    session: () => [],
    purge: async (blocks: readonly unknown[]) => blocks.map(() => "done" as const),
    persist: async () => ({ written: 0, skipped: 0, durable: true }),
    metricsText: async () => "",
    metricsContentType: "text/plain",
    control,
    peers: new FakePeers(),
  };
  const onFault = (_path: string, thrown: unknown) => void faults.push(thrown);
  const options = { version: "1", clock: systemClock, access: OPEN_ACCESS, onFault };
  const api = createApi(services, options);
  return {
    name: "http-bodies",
    inputBytesMax: 256 * 1024,
    corpus: ROUTES.flatMap((route, i) =>
      (route.startsWith("GET") ? QUERIES : BODIES).map((text) => input(i, i % TYPES.length, text)),
    ),
    generate,
    async run(bytes, saw) {
      const request = requestOf(bytes);
      if (request === null) return;
      request.headers.set("host", "localhost");
      const path = new URL(request.url).pathname;
      const answer = await api.fetch(request);
      const { status } = answer;
      if (faults.length > 0) throw faults.splice(0)[0];
      must(STATUSES.has(status), `${path}: status ${status}`);
      const type = answer.headers.get("content-type") ?? "";
      const text = textOf(await answer.bytes());
      must(status < REFUSED || text.length < 2_000, "a refusal does not repeat the request");
      must(status < REFUSED || /json|msgpack/.test(type), "a refusal has a body in words");
      if (type.includes("problem")) must(JSON.parse(text).status === status, "a problem says all");
      const words = type.includes("problem") ? shapeOf(JSON.parse(text).detail).slice(0, 16) : "";
      saw(`${(bytes[0] ?? 0) % ROUTES.length} ${status} ${type.slice(0, 24)} ${words}`);
      checkAsked(control, path.startsWith("/hicache"));
      must(({} as { owner?: unknown }).owner === undefined, "no prototype was written to");
    },
  };
}
