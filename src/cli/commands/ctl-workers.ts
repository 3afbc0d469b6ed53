import { defineCommand } from "../command.ts";
import { discover, natsFlags, openNats, plain } from "../ctl/index.ts";
import { jsonFlag, required, withDefault } from "../flags.ts";
import { duration, text } from "../kinds.ts";
import { printRows } from "../output.ts";

export const command = defineCommand({
  description: [
    "Lists the workers that answer discovery on a NATS server: those that commands can reach.",
  ],
  arguments: {},
  flags: {
    ...natsFlags,
    nats: required(text("URL"), "the NATS server"),
    wait: withDefault(duration({ min: 10, max: 60_000 }), 1_000, "how long answers are taken"),
    json: jsonFlag,
  },
  examples: [
    { words: "ctl workers --nats nats://127.0.0.1:4222", what: "a line for each worker" },
    { words: "ctl workers --nats tls://broker:4222 --ca ca.pem --json", what: "as JSON" },
  ],
  exits: ["noAnswer", "interrupted"],
  async run({ flags, io, clock, interrupt }) {
    await using client = openNats(flags, flags.nats, clock);
    const found = await discover(client, { name: "ctl workers", io }, flags.wait, interrupt());
    if (found === null) return "noAnswer";
    printRows(
      io,
      found.map(({ id, version, incarnation }) => ({
        worker: plain(id),
        version: plain(version),
        incarnation: plain(incarnation ?? ""),
      })),
      flags.json,
    );
    if (found.length === 0) io.err.write("hearth ctl workers: no worker answered discovery\n");
    return found.length === 0 ? "noAnswer" : "ok";
  },
});
