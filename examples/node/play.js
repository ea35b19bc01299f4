// Plays a game of gymhost/GuessNumber-v0 by unary calls, and two at once by the stream: `node play.js ADDRESS`.
// What it prints is a line of JSON for each.

import { randomBytes } from "node:crypto";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

import grpc from "@grpc/grpc-js";
import loader from "@grpc/proto-loader";

import { Stream, failure } from "./stream.js";
import { decode, encode } from "./values.js";

const ENVIRONMENT = "gymhost/GuessNumber-v0";
const PROTO = process.env.GYMHOST_PROTO ?? join(dirname(fileURLToPath(import.meta.url)), "../../proto");
// Milliseconds that a call may take.
const LIMIT = 30_000;

const definition = loader.loadSync("gymhost/v1/environments.proto", {
  includeDirs: [PROTO],
  longs: String, // 64 bits don't fit into a number
  enums: String,
  keepCase: true,
  oneofs: true,
  arrays: true, // empty lists are there
  defaults: true,
});
const { EnvironmentService } = grpc.loadPackageDefinition(definition).gymhost.v1;

// The next guess: the middle of what is left.
function policy(low, high, reply) {
  const told = /it is from (\d+) to (\d+)/.exec(reply ?? "");
  const [from, to] = told ? [Number(told[1]), Number(told[2])] : [low, high];
  return Math.floor((from + to) / 2);
}

// Plays an episode with what sends commands: `reset(command)` and `callTool(command)`.
async function episode(session, task) {
  const opening = await session.reset({ seed: 1, options: encode({ task }) });
  const [{ content: prompt }] = decode(opening.observation);
  const guesses = [];
  let reply = null;
  for (;;) {
    const number = policy(1, 7, reply);
    guesses.push(number);
    const { result } = await session.callTool({ name: "guess", arguments: JSON.stringify({ number }) });
    [{ content: reply }] = decode(result.observation);
    if (result.terminated || result.truncated) {
      return { prompt, guesses, reply, reward: result.reward, info: decode(result.info) };
    }
  }
}

async function byUnaryCalls(client, metadata) {
  const call = (method, request) =>
    new Promise((resolve, reject) => {
      const options = { deadline: Date.now() + LIMIT };
      client[method](request, metadata, options, (error, response) =>
        error ? reject(failure(definition, error)) : resolve(response),
      );
    });
  const create = { environment_id: ENVIRONMENT, idempotency_key: randomBytes(16) };
  const { session_id, tools } = await call("CreateSession", create);
  try {
    let sequence = 0; // commands of a session are numbered from 1
    const session = {
      reset: async (command) => (await call("Reset", { session_id, sequence: ++sequence, command })).result,
      callTool: async (command) => (await call("CallTool", { session_id, sequence: ++sequence, command })).result,
    };
    return { way: "unary", tools: tools.map((tool) => tool.name), ...(await episode(session, 3)) };
  } finally {
    await call("CloseSession", { session_id });
  }
}

async function byStream(client, metadata) {
  const stream = await Stream.open(client, metadata, definition, LIMIT);
  try {
    const play = async (task) => {
      const session = await stream.create({ environment_id: ENVIRONMENT, idempotency_key: randomBytes(16) });
      try {
        return { way: "stream", ...(await episode(session, task)) };
      } finally {
        await session.close();
      }
    };
    return await Promise.all([play(3), play(4)]);
  } finally {
    stream.close();
  }
}

const address = process.argv[2] ?? "localhost:50051";
const client = new EnvironmentService(address, grpc.credentials.createInsecure());
const metadata = new grpc.Metadata();
if (process.env.GYMHOST_TOKEN) metadata.set("authorization", `Bearer ${process.env.GYMHOST_TOKEN}`);
try {
  for (const told of [await byUnaryCalls(client, metadata), ...(await byStream(client, metadata))]) {
    console.log(JSON.stringify(told));
  }
} catch (error) {
  console.error(error.message);
  process.exitCode = 1;
} finally {
  client.close();
}
