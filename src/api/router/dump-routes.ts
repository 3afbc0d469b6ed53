import { Elysia } from "elysia";
import type { Router } from "../../router/index.ts";

const CHUNK_CHARACTERS = 256 * 1024;

const EVENT = {
  worker_id: 1,
  storage_tier: "device",
  event: {
    event_id: 1,
    data: {
      stored: {
        parent_hash: null,
        start_position: null,
        blocks: [{ block_hash: 7, tokens_hash: 7 }],
      },
    },
    dp_rank: 0,
  },
};
const EXAMPLE = { value: `${JSON.stringify(EVENT)}\n` };

/** All that the index holds, an event a line; made as fast as it is read. */
export function dumpRoutes(router: Router) {
  return new Elysia().get("/v1/events/dump", () => dump(router.dumpEvents()), {
    detail: {
      summary: "What all workers hold as Dynamo's router events, one JSON document a line",
      responses: {
        200: {
          description: "Parents before their children",
          content: {
            "application/x-ndjson": { schema: { type: "string" }, examples: { line: EXAMPLE } },
          },
        },
      },
    },
  });
}

function dump(events: Iterable<string>): Response {
  const iterator = events[Symbol.iterator]();
  const body = new ReadableStream<Uint8Array>({
    pull(controller) {
      let text = "";
      while (text.length < CHUNK_CHARACTERS) {
        const { done, value } = iterator.next();
        if (done === true) {
          if (text !== "") controller.enqueue(UTF8.encode(text));
          controller.close();
          return;
        }
        text += `${value}\n`;
      }
      controller.enqueue(UTF8.encode(text));
    },
    cancel: () => void iterator.return?.(),
  });
  return new Response(body, { headers: { "content-type": "application/x-ndjson" } });
}

const UTF8 = new TextEncoder();
