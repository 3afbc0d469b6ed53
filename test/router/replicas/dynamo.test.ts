import { expect, test } from "bun:test";
import { decode, encode } from "@msgpack/msgpack";
import { createLocalBus, LocalHub } from "../../../src/bus/index.ts";
import { decodeEnvelope, encodeEnvelope, workerNumber } from "../../../src/events/index.ts";
import { waitFor } from "../../support/index.ts";
import { basics, TestRouter } from "./replica-kit.ts";

const SUBJECT = "kv-routers-test.active_sequences_events";
const decodeOptions = { useBigInt64: true };

/** Messages as one of Dynamo's own routers writes and reads them. */
async function dynamo(hub: LocalHub) {
  const bus = createLocalBus(hub, basics);
  await bus.connected(1_000);
  const heard: unknown[] = [];
  bus.subscribe(SUBJECT, ({ data }) => {
    const envelope = decodeEnvelope(data);
    if (envelope.ok) heard.push(decode(envelope.value.payload, decodeOptions));
  });
  let sequence = 0n;
  const say = (payload: unknown) => {
    const of = { publisherId: 77n, sequence: sequence++, publishedAtMs: 1n };
    const topic = "active_sequences_events";
    const bytes = encode(payload, { useBigInt64: true });
    bus.publish(SUBJECT, encodeEnvelope({ ...of, topic, payload: bytes }));
  };
  const event = (request_id: string, worker: string, data: unknown) => ({
    request_id,
    worker: { worker_id: workerNumber(worker), dp_rank: 0 },
    data,
    router_id: 77n,
  });
  return { bus, heard, say, event };
}

test("load is published as events of Dynamo's routers", async () => {
  const hub = new LocalHub();
  await using router = await new TestRouter(hub).ready();
  router.put("w");
  const other = await dynamo(hub);
  router.route("one", "w", 3, 40);
  router.group.load.markPrefillComplete("one");
  router.group.load.free("one");
  await waitFor(() => other.heard.length === 3);
  const worker = { worker_id: workerNumber("w"), dp_rank: 0 };
  const hint = { initial_effective_prefill_tokens: 40, expected_prefill_duration: null };
  const request = {
    token_sequence: [1, 2, 3],
    track_prefill_tokens: true,
    expected_output_tokens: null,
    prefill_load_hint: hint,
    hearth: { worker: "w", prompt_tokens: 48, output_tokens: 0 },
  };
  const said = other.heard as { data: unknown; worker: object; request_id: string }[];
  expect(said.map(({ request_id }) => request_id)).toEqual(["one", "one", "one"]);
  expect(said[0]).toMatchObject({ worker, data: { AddRequest: request } });
  expect(said.slice(1).map(({ data }) => data)).toEqual(["MarkPrefillCompleted", "Free"]);
  await other.bus.close(0);
});

test("load events of Dynamo's routers are counted, single or in lists", async () => {
  const hub = new LocalHub();
  await using router = await new TestRouter(hub).ready();
  router.put("w");
  const other = await dynamo(hub);
  const token_sequence = [10n, 11n, 12n, 1n << 63n];
  other.say(other.event("a", "w", { AddRequest: { token_sequence } }));
  await waitFor(() => router.loadOf("w") === "1 requests, 4 blocks, 64 tokens");
  const prefill_load_hint = { initial_effective_prefill_tokens: 7 };
  const second = { token_sequence: [10n], track_prefill_tokens: true, prefill_load_hint };
  const strange = { AddRequest: { token_sequence: [1n] } };
  other.say({
    events: [
      other.event("a", "w", "MarkPrefillCompleted"),
      other.event("b", "w", { AddRequest: second }),
      other.event("c", "nobody", strange),
    ],
  });
  await waitFor(() => router.loadOf("w") === "2 requests, 4 blocks, 7 tokens");
  other.say(other.event("a", "w", "Free"));
  other.say(other.event("b", "w", "Free"));
  await waitFor(() => router.loadOf("w") === "0 requests, 0 blocks, 0 tokens");
  await other.bus.close(0);
});
