import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.SQLException;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import javax.sql.DataSource;

/**
 * Ships orders: {@code java Worker NAME}
 *
 * <p>Waits, claims events, handles each, and acknowledges it in the transaction that holds its effects, so that each
 * event has its effects once, whatever crashes. Start as many as you like. SIGTERM: gives back what it
 * holds, and ends. On any error of its own it ends too; let systemd or Kubernetes start it again.
 */
public final class Worker {

    private static final int LEASE_SECONDS = 3; // short, so that one can watch it renewed
    private static final String LEASE_LOST = "OB001";

    private final DataSource database = Database.fromEnvironment();
    private final ScheduledExecutorService renewals = Executors.newSingleThreadScheduledExecutor();
    private final String name;
    private volatile boolean stopping;

    private record Event(UUID id, UUID leaseToken, int attempt, String tenant, String key,
            String orderId, String customer, String item) {
    }

    private record Key(String tenant, String key) {
    }

    private Worker(String name) {
        this.name = name;
    }

    public static void main(String[] args) throws SQLException {
        var worker = new Worker(args.length > 0 ? args[0] : "java-" + ProcessHandle.current().pid());
        var main = Thread.currentThread();
        // SIGTERM: the process ends when this hook has
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            worker.stopping = true;
            main.interrupt(); // ends the wait for the carrier
            try {
                main.join();
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
            }
        }));
        try {
            worker.run();
        } finally {
            worker.renewals.shutdown();
        }
    }

    /**
     * Waiting takes a connection of its own, outside of any transaction (JDBC's autocommit is on); not one from a pool in
     * transaction mode. It is idle while it waits. The short timeout is how soon we see a SIGTERM.
     */
    private void run() throws SQLException {
        try (var waiter = database.getConnection();
                var wait = waiter.prepareStatement("call outbox.wait(?, timeout => interval '2 seconds')")) {
            wait.setArray(1, waiter.createArrayOf("text", new String[] {"shipping"}));
            while (!stopping) {
                if (isReady(wait) && !stopping) {
                    workBatch(claim());
                }
            }
        }
    }

    private static boolean isReady(PreparedStatement wait) throws SQLException {
        try (var rows = wait.executeQuery()) {
            rows.next();
            return rows.getBoolean("ready");
        }
    }

    /** A transaction of its own, committed at once: from now on the events are leased to us, and their attempt counts. */
    private List<Event> claim() throws SQLException {
        // The fields of the payload are read as text, and not cast here: one that is not as
        // expected would fail the claim, and with it every event.
        var sql = """
                select event_id, lease_token, attempt, tenant_id, event_key,
                       payload ->> 'orderId' as order_id, payload ->> 'customer' as customer, payload ->> 'item' as item
                from outbox.claim('shipping', max_events => 10, lease_duration => make_interval(secs => ?), worker => ?)
                """;
        try (var connection = database.getConnection(); var statement = connection.prepareStatement(sql)) {
            statement.setInt(1, LEASE_SECONDS);
            statement.setString(2, name);
            var events = new ArrayList<Event>();
            try (var row = statement.executeQuery()) {
                while (row.next()) {
                    events.add(new Event(row.getObject("event_id", UUID.class), row.getObject("lease_token", UUID.class),
                            row.getInt("attempt"), row.getString("tenant_id"), row.getString("event_key"),
                            row.getString("order_id"), row.getString("customer"), row.getString("item")));
                }
            }
            return events;
        }
    }

    private void workBatch(List<Event> events) throws SQLException {
        if (events.isEmpty()) {
            return; // another worker was quicker
        }
        var token = events.get(0).leaseToken(); // one for the whole batch
        // while we work, the lease is renewed, early enough to try again
        var renewal = renewals.scheduleAtFixedRate(() -> extend(token),
                LEASE_SECONDS * 1000 / 3, LEASE_SECONDS * 1000 / 3, TimeUnit.MILLISECONDS);
        var waiting = new HashSet<Key>(); // keys of which an event has failed: their later events went back with it
        try {
            for (var event : events) {
                var key = new Key(event.tenant(), event.key());
                if (stopping) {
                    break;
                }
                if (!waiting.contains(key) && !handle(event) && event.key() != null) {
                    waiting.add(key);
                }
            }
            if (stopping) {
                // What is not done goes back: no attempt is used up, and another worker has it at once.
                System.out.println("released " + releaseAll(token));
            }
        } catch (SQLException e) {
            if (!LEASE_LOST.equals(e.getSQLState())) {
                throw e;
            }
            // Too slow: another worker has these events now, and nothing of ours was committed.
            System.out.println("lease lost");
        } finally {
            renewal.cancel(false);
        }
    }

    /** Returns whether the event is done; false when it has failed, or when we are to stop. */
    private boolean handle(Event event) throws SQLException {
        try {
            // The slow part comes first, with no transaction open.
            var booking = Carrier.book(event.id(), event.item(), event.attempt());
            Database.inTransaction(database, connection -> ship(connection, event, booking));
            System.out.println("shipped " + event.id());
            return true;
        } catch (InterruptedException e) {
            return false;
        } catch (Carrier.CarrierException e) {
            return fail(event, e.code, e.permanent);
        } catch (SQLException e) {
            if (LEASE_LOST.equals(e.getSQLState())) {
                throw e;
            }
            return fail(event, e.getSQLState(), false); // the subscription knows which SQLSTATEs are permanent
        } catch (RuntimeException e) {
            return fail(event, e.getClass().getSimpleName(), false);
        }
    }

    /** In one transaction: the receipt, and the effects. */
    private Void ship(Connection connection, Event event, String booking) throws SQLException {
        // Acknowledge first: from here to the commit nobody can take the lease over. False: it was acknowledged
        // before (we had asked, and the answer to our COMMIT got lost), so its effects are there.
        try (var ack = connection.prepareStatement("select outbox.ack_one(?, ?, message_id => ?)")) {
            ack.setObject(1, event.leaseToken());
            ack.setObject(2, event.id());
            ack.setString(3, booking);
            try (var rows = ack.executeQuery()) {
                rows.next();
                if (!rows.getBoolean(1)) {
                    return null;
                }
            }
        }
        try (var insert = connection.prepareStatement(
                "insert into shop.shipment (event_id, order_id, customer, booking, worker) values (?, ?, ?, ?, ?)")) {
            insert.setObject(1, event.id());
            insert.setLong(2, Long.parseLong(event.orderId()));
            insert.setString(3, event.customer());
            insert.setString(4, booking);
            insert.setString(5, name);
            insert.executeUpdate();
        }
        return null;
    }

    /** By the code people find, and retry, what failed for the same reason. */
    private boolean fail(Event event, String code, boolean permanent) throws SQLException {
        try (var connection = database.getConnection();
                var statement = connection.prepareStatement("select outbox.fail(?, ?, error_code => ?, permanent => ?)")) {
            statement.setObject(1, event.leaseToken());
            statement.setObject(2, event.id());
            statement.setString(3, code);
            statement.setBoolean(4, permanent);
            try (var rows = statement.executeQuery()) {
                rows.next();
                System.out.println("failed " + event.id() + ": " + code + " -> " + rows.getString(1));
            }
        }
        return false;
    }

    /** No harm in an error here: if the lease is lost, the next acknowledgement says so. */
    private void extend(UUID token) {
        try (var connection = database.getConnection();
                var statement = connection.prepareStatement("select outbox.extend(?, make_interval(secs => ?))")) {
            statement.setObject(1, token);
            statement.setInt(2, LEASE_SECONDS);
            statement.execute();
        } catch (SQLException e) {
            System.out.println("not extended: " + e.getMessage());
        }
    }

    private int releaseAll(UUID token) throws SQLException {
        try (var connection = database.getConnection();
                var statement = connection.prepareStatement("select outbox.release_all(?)")) {
            statement.setObject(1, token);
            try (var rows = statement.executeQuery()) {
                rows.next();
                return rows.getInt(1);
            }
        }
    }
}
