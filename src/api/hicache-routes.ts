import { Elysia, type TSchema, t } from "elysia";
import {
  answerTypeOf,
  COMMAND_LIMITS,
  JSON_TYPE,
  MSGPACK_TYPE,
  type Receipt,
} from "../control/index.ts";
import { formatBytes, stringifyJson } from "../core/index.ts";
import type { Callers } from "./authorization.ts";
import { answerJson, readObject } from "./body.ts";
import {
  answerReceipt,
  blockName,
  COMMAND_EXAMPLES,
  receiptSchema,
  statusOfReceipt,
} from "./command-schema.ts";
import { described, jsonBody, jsonContent } from "./description.ts";
import { count, nullable, seconds } from "./fields.ts";
import { refuse } from "./problem.ts";
import type { ControlServices } from "./services.ts";

/** Owner of pins if the request does not name one. */
const OWNER = "hicache";

/** Returns routes that pin and flush, with the paths and bodies of SGLang's server. */
export function hicacheRoutes(
  control: ControlServices,
  { callers, flushByGet }: { readonly callers: Callers; readonly flushByGet: boolean },
) {
  const change = async (request: Request, pin: boolean): Promise<Receipt | Response> => {
    const body = await readObject(request);
    if (body instanceof Response) return body;
    const { block_hashes, ttl_seconds } = body;
    const owner = body.owner ?? OWNER;
    const command = { type: "Cache", block_hashes, pin, owner, ...(pin ? { ttl_seconds } : {}) };
    const bytes = new TextEncoder().encode(stringifyJson(command));
    const source = callers.sourceOf(request);
    const sender = callers.senderOf(request);
    const receipt = await control.plane.submit(bytes, JSON_TYPE, sender, { source });
    return receipt.status === "rejected" ? rejected(receipt) : receipt;
  };
  const flush = async ({ request }: { readonly request: Request }) => {
    const receipt = await control.plane.flush(callers.senderOf(request));
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
      // The framework also calls GET handlers for HEAD requests, but a probe must not empty the
      // cache.
      ({ request }) => {
        const mayFlush = flushByGet && request.method !== "HEAD";
        return mayFlush ? flush({ request }) : refuseMethod(request.method, flushByGet);
      },
      {
        detail: {
          ...flushDetail,
          ...described(flushDetail.summary, { 405: "HEAD; and GET without `api.flush_by_get`" }),
        },
      },
    )
    .post("/flush_cache", flush, { parse: "none", detail: flushDetail });
}

function refuseMethod(method: string, flushByGet: boolean): Response {
  return refuse("METHOD_NOT_ALLOWED", `/flush_cache does not support ${method}`, {
    fix: flushByGet ? "use POST" : "use POST, or set api.flush_by_get = true",
    headers: { allow: flushByGet ? "GET, POST" : "POST" },
  });
}

/**
 * Returns the number of blocks for which the pin or unpin has taken effect, including those whose
 * copy to SSD is still to be written.
 */
function inForce({ counts }: Receipt): number {
  return counts.done + counts.already + counts.deferred;
}

function rejected(receipt: Receipt): Response {
  const reason = receipt.reason ?? "refused";
  return refuse("COMMAND_REJECTED", reason, { status: statusOfReceipt(receipt) });
}

const hashes = {
  block_hashes: t.Array(blockName, { maxItems: COMMAND_LIMITS.blocksMax }),
  owner: t.Optional(t.String({ description: "Owner of the pins; default: `hicache`" })),
};

const pinSchema = t.Object({
  ...hashes,
  ttl_seconds: t.Optional(nullable(seconds("Lifetime of the pins"))),
});
const unpinSchema = t.Object(hashes);
const pinnedSchema = t.Object({ pinned_count: count("Number of blocks pinned now") });
const unpinnedSchema = t.Object({
  unpinned_count: count("Number of blocks whose pin of this owner was removed"),
});

const REFUSED = { description: "Problem with the receipt's reason" };

function changeDetail(summary: string, body: TSchema, done: string, report: TSchema) {
  return {
    summary,
    requestBody: jsonBody(body),
    responses: {
      200: { description: done, content: jsonContent(report) },
      409: REFUSED,
      422: REFUSED,
    },
  };
}

const pinDetail = changeDetail(
  "Pins blocks; unknown blocks are skipped",
  pinSchema,
  "Pinned",
  pinnedSchema,
);
const unpinDetail = changeDetail(
  "Removes one pin of this owner from each block",
  unpinSchema,
  "Unpinned",
  unpinnedSchema,
);

const FLUSHED = [
  "Cache flushed.",
  "Removed 97 blocks (970MiB).",
  "Kept 168 blocks: 168 by pin.",
  "",
].join("\n");

const flushDetail = {
  summary: "Removes every block that no pin, lease or session holds, and reports the rest",
  responses: {
    200: {
      description: "Text; a receipt if `Accept` names JSON",
      content: {
        "text/plain": { schema: t.String() as object, examples: { example: { value: FLUSHED } } },
        ...jsonContent(receiptSchema, COMMAND_EXAMPLES.Flush.receipt),
      },
    },
    403: { description: "Problem: the caller lacks the role `purge`" },
  },
};

/** Returns a text summary of a flush: blocks removed, blocks kept, and what protects those. */
function flushText(receipt: Receipt): string {
  const { status, reason, counts, bytes, held = [] } = receipt;
  if (status === "rejected") return `Cache not flushed: ${reason ?? "refused"}\n`;
  const size = bytes === undefined ? "" : ` (${formatBytes(bytes)})`;
  const lines = ["Cache flushed.", `Removed ${counts.done} blocks${size}.`];
  const kept = counts.held;
  lines.push(kept === 0 ? "Kept nothing." : `Kept ${kept} blocks${heldText(held, kept)}.`);
  if (counts.deferred > 0) lines.push(`${counts.deferred} blocks are still being removed.`);
  return `${lines.join("\n")}\n`;
}

/**
 * Returns a text such as ": 168 by pins, 3 by sessions". A block counts once for each kind of
 * holder.
 */
function heldText(held: NonNullable<Receipt["held"]>, kept: number): string {
  const byKind = new Map<string, number>();
  for (const { by = [] } of held) {
    for (const kind of new Set(by.map((one) => one.kind))) {
      byKind.set(kind, (byKind.get(kind) ?? 0) + 1);
    }
  }
  if (byKind.size === 0) return "";
  const parts = [...byKind].map(([kind, blocks]) => `${blocks} by ${kind}`);
  const which = held.length < kept ? `; of the first ${held.length}: ` : ": ";
  return `${which}${parts.join(", ")}`;
}
