import { renderConfigReference, renderRouterReference } from "../../config/index.ts";
import { renderHealthReference, renderMetricsReference } from "../../observability/index.ts";
import { defineCommand } from "../command.ts";
import { renderCommandReference } from "../command-reference.ts";
import { renderErrorReference } from "../error-reference.ts";
import { requiredArgument } from "../flags.ts";
import { choice } from "../kinds.ts";

const PAGES = {
  commands: renderCommandReference,
  config: renderConfigReference,
  errors: renderErrorReference,
  health: renderHealthReference,
  metrics: renderMetricsReference,
  router: renderRouterReference,
} as const;

const TOPICS = Object.keys(PAGES) as (keyof typeof PAGES)[];

export const command = defineCommand({
  description: ["The pages are made from the tables that the program itself uses."],
  arguments: {
    topic: requiredArgument(
      choice(TOPICS),
      "words in receipts, keys of an agent's or a router's file, error and exit codes, health " +
        "codes, or metrics",
    ),
  },
  flags: {},
  examples: [
    { words: "reference config", what: "every key of the configuration file" },
    { words: "reference health", what: "what can be the matter with an agent, and what to do" },
    { words: "reference metrics", what: "every metric, its type and its labels" },
  ],
  exits: [],
  async run({ arguments: { topic }, io }) {
    const page = PAGES[topic]();
    io.out.write(page.endsWith("\n") ? page : `${page}\n`);
    return "ok";
  },
});
