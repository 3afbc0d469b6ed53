import { t } from "elysia";
import { COMMAND_LIMITS } from "../control/index.ts";
import { COMMAND_EXAMPLES } from "./command-examples.ts";
import { blockName, receiptSchema } from "./command-schema.ts";
import { count, nullable, seconds } from "./fields.ts";

const hashes = {
  block_hashes: t.Array(blockName, { maxItems: COMMAND_LIMITS.blocksMax }),
  owner: t.Optional(t.String({ description: "Whose pins; `hicache` unless given" })),
};

export const pinSchema = t.Object({
  ...hashes,
  ttl_seconds: t.Optional(nullable(seconds("The pins end by themselves after"))),
});
export const unpinSchema = t.Object(hashes);
export const pinnedSchema = t.Object({ pinned_count: count("Blocks that are pinned now") });
export const unpinnedSchema = t.Object({
  unpinned_count: count("Blocks on which this owner had a pin, which is gone now"),
});

const PIN_EXAMPLE = { block_hashes: [111, -222, 333] };
const REFUSED = { description: "Problem: the reason of the receipt" };

function json(schema: object, value: unknown) {
  return { "application/json": { schema, examples: { example: { value } } } };
}

export const pinDetail = {
  summary: "Pins blocks: what is not known here is passed over",
  requestBody: { required: true, content: json(pinSchema, PIN_EXAMPLE) },
  responses: {
    200: { description: "Pinned", content: json(pinnedSchema, { pinned_count: 2 }) },
    409: REFUSED,
    422: REFUSED,
  },
};

export const unpinDetail = {
  summary: "Takes this owner's pins from blocks, each once",
  requestBody: { required: true, content: json(unpinSchema, PIN_EXAMPLE) },
  responses: {
    200: { description: "Unpinned", content: json(unpinnedSchema, { unpinned_count: 2 }) },
    409: REFUSED,
    422: REFUSED,
  },
};

const FLUSHED = [
  "Cache flushed.",
  "Removed 97 blocks (970MiB).",
  "Kept 168 blocks: 168 by pin.",
  "",
].join("\n");

export const flushDetail = {
  summary: "Removes every block that no pin, lease or session holds, and says what stayed",
  responses: {
    200: {
      description: "In words; as a receipt where `Accept` names JSON",
      content: {
        "text/plain": { schema: t.String() as object, examples: { example: { value: FLUSHED } } },
        ...json(receiptSchema, COMMAND_EXAMPLES.Flush!.receipt),
      },
    },
    403: { description: "Problem: the caller's role is not `purge`" },
  },
};
