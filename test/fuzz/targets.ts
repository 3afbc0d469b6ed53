import type { Target } from "./target.ts";
import { chatBodies } from "./targets/chat-bodies.ts";
import { jsonCommands, packedCommands } from "./targets/commands.ts";
import { configs } from "./targets/configs.ts";
import { conversations } from "./targets/conversations.ts";
import { engineBatches, savedFeeds } from "./targets/engine-events.ts";
import { feedQuestions } from "./targets/feed-questions.ts";
import { peerFrames } from "./targets/frames.ts";
import { gpuCopies } from "./targets/gpu-copies.ts";
import { headers } from "./targets/headers.ts";
import { helloFrames } from "./targets/hello.ts";
import { httpBodies } from "./targets/http-bodies.ts";
import { json } from "./targets/json.ts";
import { manifests } from "./targets/manifests.ts";
import { members } from "./targets/members.ts";
import { names } from "./targets/names.ts";
import { prompts } from "./targets/prompts.ts";
import { records } from "./targets/records.ts";
import { replyFrames } from "./targets/reply-frames.ts";
import { requestFrames } from "./targets/request-frames.ts";
import { residencyMessages, routerNews } from "./targets/router-news.ts";
import { serverTarget } from "./targets/server.ts";
import { templates } from "./targets/templates.ts";
import { traces } from "./targets/traces.ts";
import { zmtpStreams } from "./targets/zmtp.ts";

export const TARGETS: Readonly<Record<string, () => Target>> = {
  requests: requestFrames,
  replies: replyFrames,
  server: serverTarget,
  hello: helloFrames,
  conversations,
  manifests,
  configs,
  json,
  members,
  frames: peerFrames,
  "gpu-copies": gpuCopies,
  records,
  commands: jsonCommands,
  "packed-commands": packedCommands,
  "http-bodies": httpBodies,
  headers,
  traces,
  prompts,
  names,
  "router-news": routerNews,
  residency: residencyMessages,
  "feed-questions": feedQuestions,
  "engine-events": engineBatches,
  "saved-feeds": savedFeeds,
  zmtp: zmtpStreams,
  templates,
  "chat-bodies": chatBodies,
};
