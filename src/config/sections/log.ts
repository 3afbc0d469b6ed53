import { choiceKind } from "../kinds.ts";
import { section, withDefault } from "../spec.ts";

const level = withDefault({
  key: "level",
  kind: choiceKind(["error", "warn", "info", "debug"]),
  standard: "info",
  reload: true,
  doc: "The least important line that is still written.",
});

const format = withDefault({
  key: "format",
  kind: choiceKind(["text", "json"]),
  standard: "text",
  reload: false,
  doc: "How a line looks: `text` for people, `json` (one object a line) for collectors.",
});

export const logSection = section("What is written to standard error.", { level, format });
