import java.util.UUID;

/**
 * Stands for the other system that the worker talks to, with its moods: a piano takes four seconds, a vase
 * times out twice, and dragons are not carried.
 */
final class Carrier {

    /** The code takes letters, digits and _ . : - , as outbox.fail() does. Permanent: trying again would not help. */
    static final class CarrierException extends Exception {
        final String code;
        final boolean permanent;

        CarrierException(String code, boolean permanent) {
            super(code);
            this.code = code;
            this.permanent = permanent;
        }
    }

    private Carrier() {
    }

    /**
     * Returns the number of the booking. The carrier may be asked twice for one event (we may crash after the call and
     * before our commit), so it is given the event's id, by which it can tell: the same id, the same booking.
     */
    static String book(UUID eventId, String item, int attempt) throws CarrierException, InterruptedException {
        if ("piano".equals(item)) {
            Thread.sleep(4000);
        }
        if ("vase".equals(item) && attempt <= 2) {
            throw new CarrierException("carrier_timeout", false);
        }
        if ("dragon".equals(item)) {
            throw new CarrierException("not_carried", true);
        }
        return "B-" + eventId;
    }
}
