import { patternKind } from "../kinds.ts";
import { optional, section } from "../spec.ts";

const url = optional({
  key: "url",
  kind: patternKind<string>({
    name: "NATS URL",
    pattern: /^(?:nats|tls|ws|wss):\/\/[^\s]+$/,
    words: "nats://, tls://, ws:// or wss:// and a host",
    example: "nats://127.0.0.1:4222",
  }),
  reload: false,
  doc: "The NATS server that commands come from. Unset: commands come over HTTP alone.",
  example: "nats://127.0.0.1:4222",
});

export const natsSection = section("Commands over NATS.", { url });
