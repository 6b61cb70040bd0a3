// The three operations on Fastify and pg, as a careful developer would write them in an afternoon.
//
// It checks less than the service does (one key from the environment, bodies by JSON Schema), which is in its favour. Two
// workers.
import cluster from 'node:cluster'
import Fastify from 'fastify'
import pg from 'pg'

const COLUMNS = 'id, name, category_id AS "categoryId", status'
pg.types.setTypeParser(20, Number)

async function serve() {
  const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL, max: 8 })
  const app = Fastify()
  const status = { type: 'string', enum: ['available', 'pending', 'sold'] }
  const newPet = { name: { type: 'string', minLength: 1, maxLength: 255 }, categoryId: { type: 'integer' }, status }
  const object = (properties, required = []) => ({ type: 'object', required, properties })
  const pet = object({ id: { type: 'integer' }, ...newPet })

  app.addHook('onRequest', async (request, reply) => {
    if (request.headers.authorization !== `Bearer ${process.env.KEY}`) reply.code(401).send({ code: 'invalid_api_key' })
  })

  const query = (name, text, values) => pool.query({ name, text, values })

  app.get('/v1/pets', {
    schema: {
      querystring: object({ status, after: { type: 'integer', default: 0 }, limit: { type: 'integer', maximum: 100, default: 20 } }),
      response: { 200: { type: 'array', items: pet } },
    },
  }, async (request) => {
    const { status, after, limit } = request.query
    const result = status
      ? await query('list-status', `SELECT ${COLUMNS} FROM pets WHERE status = $3 AND id > $1 ORDER BY id LIMIT $2`, [after, limit, status])
      : await query('list', `SELECT ${COLUMNS} FROM pets WHERE id > $1 ORDER BY id LIMIT $2`, [after, limit])
    return result.rows
  })

  app.get('/v1/pets/:id', {
    schema: { params: object({ id: { type: 'integer' } }), response: { 200: pet } },
  }, async (request, reply) => {
    const { rows } = await query('get', `SELECT ${COLUMNS} FROM pets WHERE id = $1`, [request.params.id])
    return rows[0] ?? reply.code(404).send({ code: 'pet_not_found' })
  })

  app.post('/v1/pets', {
    schema: { body: object(newPet, ['name', 'categoryId']), response: { 201: pet } },
  }, async (request, reply) => {
    const { name, categoryId, status } = request.body
    const { rows } = await query('create', `INSERT INTO pets (name, category_id, status) VALUES ($1, $2, $3) RETURNING ${COLUMNS}`, [name, categoryId, status])
    return reply.code(201).header('Location', `/v1/pets/${rows[0].id}`).send(rows[0])
  })

  await app.listen({ host: '127.0.0.1', port: Number(process.env.PORT) })
}

if (cluster.isPrimary) {
  cluster.fork()
  cluster.fork()
} else {
  await serve()
}
