import { Elysia } from "elysia";
import {
  answerTypeOf,
  JSON_TYPE,
  MSGPACK_TYPE,
  type Receipt,
  type Sender,
} from "../control/index.ts";
import { type Json, stringifyJson, type TurnSource } from "../core/index.ts";
import { answerJson, readObject } from "./body.ts";
import type { Callers } from "./callers.ts";
import { flushText } from "./flush-text.ts";
import { flushDetail, pinDetail, unpinDetail } from "./hicache-schema.ts";
import { refuse } from "./problem.ts";
import { answerReceipt, statusOfReceipt } from "./receipt-answer.ts";
import type { ControlServices } from "./services.ts";

/** Whose pins these are where the request names no owner. */
const OWNER = "hicache";

/** Pins and flushes in the shapes that SGLang's server has for them. */
export function hicacheRoutes(
  control: ControlServices,
  { callers, flushByGet }: { readonly callers: Callers; readonly flushByGet: boolean },
) {
  const change = async (request: Request, pin: boolean): Promise<Receipt | Response> => {
    const body = await readObject(request);
    if (body instanceof Response) return body;
    const source = callers.sourceOf(request);
    const receipt = await submitCache(control, callers.senderOf(request), { body, pin, source });
    return receipt.status === "rejected" ? rejected(receipt) : receipt;
  };
  const flush = async ({ request }: { readonly request: Request }) => {
    const receipt = await control.flush(callers.senderOf(request));
    const accept = request.headers.get("accept") ?? "";
    if (accept.includes(JSON_TYPE) || accept.includes(MSGPACK_TYPE)) {
      return answerReceipt(receipt, answerTypeOf(accept, null));
    }
    return new Response(flushText(receipt), {
      status: statusOfReceipt(receipt),
      headers: { "content-type": "text/plain; charset=utf-8" },
    });
  };
  return new Elysia()
    .post(
      "/hicache/pin_blocks",
      async ({ request }) => {
        const receipt = await change(request, true);
        return receipt instanceof Response
          ? receipt
          : answerJson({ pinned_count: inForce(receipt) });
      },
      { parse: "none", detail: pinDetail },
    )
    .post(
      "/hicache/unpin_blocks",
      async ({ request }) => {
        const receipt = await change(request, false);
        if (receipt instanceof Response) return receipt;
        return answerJson({ unpinned_count: receipt.counts.done });
      },
      { parse: "none", detail: unpinDetail },
    )
    .get(
      "/flush_cache",
      // The router takes HEAD for GET, and a probe must not empty the cache.
      ({ request }) => {
        const mayFlush = flushByGet && request.method !== "HEAD";
        return mayFlush ? flush({ request }) : refuseMethod(request.method, flushByGet);
      },
      { detail: flushDetail },
    )
    .post("/flush_cache", flush, { parse: "none", detail: flushDetail });
}

function refuseMethod(method: string, flushByGet: boolean): Response {
  return refuse("METHOD_NOT_ALLOWED", `/flush_cache does not answer ${method}`, {
    fix: flushByGet ? "use POST" : "use POST, or set api.flush_by_get = true",
    headers: { allow: flushByGet ? "GET, POST" : "POST" },
  });
}

/** What holds from now on, also where half of it is outstanding. */
function inForce({ counts }: Receipt): number {
  return counts.done + counts.already + counts.deferred;
}

interface CacheRequest {
  readonly body: Readonly<Record<string, Json>>;
  readonly pin: boolean;
  readonly source: TurnSource;
}

function submitCache(
  control: ControlServices,
  sender: Sender,
  { body, pin, source }: CacheRequest,
): Promise<Receipt> {
  const { block_hashes, ttl_seconds } = body;
  const owner = body.owner ?? OWNER;
  const command = { type: "Cache", block_hashes, pin, owner, ...(pin ? { ttl_seconds } : {}) };
  return control.submit(new TextEncoder().encode(stringifyJson(command)), JSON_TYPE, sender, {
    source,
  });
}

function rejected(receipt: Receipt): Response {
  const reason = receipt.reason ?? "refused";
  return refuse("COMMAND_REJECTED", reason, { status: statusOfReceipt(receipt) });
}
