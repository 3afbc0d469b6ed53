import { runAgent } from "../../app/index.ts";
import { defineCommand } from "../command.ts";
import { optional, required } from "../flags.ts";
import { text } from "../kinds.ts";

export const command = defineCommand({
  description: [
    "Runs the agent of this host in the foreground: takes the RAM tier's memory, listens for " +
      "engines on a Unix socket and for people and monitoring over HTTP.",
    "SIGTERM and SIGINT drain for up to 10 s: nothing new is handed out, what engines hold " +
      "may end. SIGHUP reads the configuration again and takes what may change while it runs. " +
      "Under systemd it reports readiness, reloads and its watchdog.",
  ],
  arguments: {},
  flags: {
    config: required(text("FILE"), "configuration, as config/hearth.toml"),
    private: optional(
      text("FOLDER"),
      "end with standard input, then remove FOLDER (how demo and replay start their own agent)",
    ),
  },
  examples: [
    { words: "agent --config /etc/hearth/hearth.toml", what: "as the systemd unit starts it" },
    { words: "check /etc/hearth/hearth.toml", what: "would this configuration be accepted?" },
  ],
  exits: ["configRefused", "hostCannot"],
  async run({ flags, io, build }) {
    await runAgent({
      configPath: flags.config,
      privateFolder: flags.private,
      version: build.version,
      commit: build.commit,
      write: (line) => io.err.write(line),
    });
    return "ok";
  },
});
